"""The site, driven in a real Chromium."""
