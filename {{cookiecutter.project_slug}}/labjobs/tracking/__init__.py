"""The tracking store (MLflow) and Parquet files: the courier brings jobs' journals to both.
The only package that imports MLflow and pyarrow; may import cli and job.

    courier        a job's journal on its way to the store, and to Parquet files; `sync`
    mlflow_client  the store's address, client, database and experiment
    mlflow_store   an attempt's run: writing; stored_jobs: reading
    costs          time, memory and energy of an attempt
"""
