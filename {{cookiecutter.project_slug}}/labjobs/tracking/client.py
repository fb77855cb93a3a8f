"""MLflow's client, set to be quiet and to give up after seconds. Importing MLflow takes 2 s."""

import os
from typing import TYPE_CHECKING

from labjobs.tracking import address

if TYPE_CHECKING:
    from mlflow import MlflowClient

ATTEMPTS = 3
"""Number of times that MLflow tries to reach a database in one call, which takes 0.4 s. Its default
of 10 takes 100 s, during which nothing else can be tried."""

ENVIRONMENT = {
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # it raises what it would print
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # not our lines
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # the default of 7 takes four minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Defaults of variables that MLflow reads, some of them when it is imported."""


def client(uri: str = "") -> "MlflowClient":
    """MLflow's client, which gives up after seconds: callers try again themselves."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = ATTEMPTS
    return MlflowClient(uri or address.uri())
