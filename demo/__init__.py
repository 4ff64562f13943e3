"""Small real models and the demonstration that runs them through the whole pipeline."""
