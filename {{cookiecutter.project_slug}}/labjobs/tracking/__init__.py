"""The tracking store (MLflow) and other trackers: the courier brings jobs' journals to all of them.
The only package that imports MLflow, pyarrow and the trackers; may import cli and job.

    courier        a job's journal on its way to the store; `sync`
    mlflow_client  the store's address, client, database and experiment
    mlflow_store   an attempt's run: writing; stored_jobs: reading
    copies         copies beside the store, and Parquet files; tensorboard, trackio, wandb: others
    costs          time, memory and energy of an attempt
"""
