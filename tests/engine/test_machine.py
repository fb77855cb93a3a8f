"""What a process may use of the machine."""

from labjobs import machine


def test_limits_of_control_groups(tmp_path, monkeypatch):
    """Those of the process's own group and of each that it lies in; `max` is none."""
    inner = tmp_path / "groups" / "user" / "job"
    inner.mkdir(parents=True)
    (tmp_path / "own").write_text("1:cpu:/elsewhere\n0::/user/job\n")
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "OWN_GROUP", tmp_path / "own")
    monkeypatch.delenv("JOBS_AT_ONCE", raising=False)
    (inner / "cpu.max").write_text("max 100000\n")
    (inner / "memory.max").write_text("5000000\n")
    (inner.parent / "memory.max").write_text("max\n")
    unlimited = machine.cores()
    assert machine.memory() == 5_000_000
    (inner.parent / "cpu.max").write_text("190000 100000\n")
    assert machine.cores() == 1
    (inner.parent / "cpu.max").write_text(f"{unlimited}00000 100000\n")
    assert machine.cores() == unlimited
