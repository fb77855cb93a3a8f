"""The tracking store. The only package that imports MLflow; may import cli and job."""
