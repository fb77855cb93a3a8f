"""The tracking store (MLflow), to which the courier brings jobs' journals.
The only package that imports MLflow; may import cli and job.

    courier        a job's journal on its way to the store; `sync`
    mlflow_client  the store's address, client, database and experiment
    mlflow_store   an attempt's run: writing; stored_jobs: reading
    parquet        an attempt's two tables
    costs          time, memory and energy of an attempt
"""
