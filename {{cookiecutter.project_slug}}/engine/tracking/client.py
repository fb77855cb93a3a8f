"""MLflow's client, patient for seconds and quiet. To import MLflow takes 2 s."""

import os
from typing import TYPE_CHECKING

from engine.tracking import address

if TYPE_CHECKING:
    from mlflow import MlflowClient

ATTEMPTS = 3
"""Times that MLflow tries to reach a database in one call, for 0.4 s in all; its own 10 take 100 s,
in which nothing else is tried."""


def client(uri: str = "") -> "MlflowClient":
    """MLflow's client, with a patience of seconds: whoever calls it tries again by itself."""
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")  # it raises what it would print
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # not our lines
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # its own 7 take four minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = ATTEMPTS
    return MlflowClient(uri or address.uri())
