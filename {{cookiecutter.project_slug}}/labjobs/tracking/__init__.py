"""The tracking store (MLflow) and other trackers: the courier brings jobs' journals to all of them.
The only package that imports MLflow, pyarrow and the trackers; may import cli and job.

    courier        a job's journal on its way to the store; `sync`
    mlflow_store   the store's address, its client, an attempt's run; stored_jobs: reading
    copies         copies beside the store: Parquet files, TensorBoard, Trackio, Weights & Biases
    costs          time, memory and energy of an attempt
"""
