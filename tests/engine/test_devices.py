"""What --device accepts on a machine without a GPU, and the versions that are recorded."""

from importlib import metadata

import pytest
import torch
from engine.errors import SettingsError
from engine.job import provenance
from engine.training import devices

CPU = torch.device("cpu")
no_gpu = pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without")


@no_gpu
@pytest.mark.parametrize("name", ["auto", "cpu", "cpu:0"])
def test_without_a_gpu_it_is_the_cpu(name: str) -> None:
    assert devices.choose(name) == CPU


@no_gpu
@pytest.mark.parametrize(
    "name", ["cuda", "cuda:1", "mps", "xpu", "cpu:1", "meta", "", "gpu", "cuda:", "cuda:-1", "0"]
)
def test_any_other_device_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^--device {name}: [^\n]+$"):
        devices.choose(name)


def test_packages_without_metadata_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as MLflow's, where mlflow-skinny has taken its place."""
    known = metadata.version

    def version(package: str) -> str:
        if package == "mlflow":
            raise metadata.PackageNotFoundError(package)
        return known(package)

    monkeypatch.setattr(metadata, "version", version)
    versions = provenance.tags()["versions"].split(", ")
    assert f"torch {known('torch')}" in versions
    assert not any(each.startswith("mlflow ") for each in versions)
