"""MLflow's client, patient for seconds and quiet. To import MLflow takes 2 s."""

import os
from typing import TYPE_CHECKING

from engine.tracking import address

if TYPE_CHECKING:
    from mlflow import MlflowClient

ATTEMPTS = 3
"""Times that MLflow tries to reach a database in one call, for 0.4 s in all; its own 10 take 100 s,
in which nothing else is tried."""

ENVIRONMENT = {
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # it raises what it would print
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # not our lines
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # its own 7 take four minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Variables that MLflow reads, where the user has not set them; some when it is imported."""


def client(uri: str = "") -> "MlflowClient":
    """MLflow's client, with a patience of seconds: whoever calls it tries again by itself."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = ATTEMPTS
    return MlflowClient(uri or address.uri())
