"""Qualification of Transformers models on AWS Trainium2: from models.yaml to a published row."""
