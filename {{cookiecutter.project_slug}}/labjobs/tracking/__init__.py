"""The tracking store and other targets of the courier. The only package that imports MLflow and
pyarrow; may import cli and job.
"""
