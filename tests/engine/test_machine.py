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


def test_limits_of_control_groups_of_version_1(tmp_path, monkeypatch):
    """Each controller has a tree of its own. In a container its root is the container's group."""
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUP", tmp_path / "own")
    monkeypatch.delenv("JOBS_AT_ONCE", raising=False)
    (tmp_path / "own").write_text("5:cpuacct,cpu:/docker/1\n4:memory:/docker/1\n0::/\n")
    unlimited = machine.cores()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "memory" / "docker" / "1").mkdir(parents=True)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "memory" / "docker" / "1" / "memory.limit_in_bytes").write_text("5000000\n")
    assert (machine.cores(), machine.memory()) == (unlimited, 5_000_000)
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    assert machine.cores() == 1
