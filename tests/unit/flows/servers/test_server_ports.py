"""Two users who start at the same moment do not both find the usual port free."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.servers import preflight
from flows.servers.preflight import planned_servers
from flows.servers.process import PortReservations, ServerError, free_ports
from flows.servers.settings import ServerSettings


def settings_in(folder: Path) -> ServerSettings:
    return ServerSettings(state_dir=folder, prefect_port=None, mlflow_port=None, prefect_login=False)


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Usual ports that are free on this machine."""
    ports = dict(zip(("prefect", "mlflow"), free_ports(2), strict=True))
    monkeypatch.setattr(preflight, "USUAL_PORTS", ports)
    return ports


def test_the_second_of_two_starts_takes_other_ports_and_says_so(tmp_path: Path, usual: dict[str, int]) -> None:
    ours, theirs, said = PortReservations(), PortReservations(), list[str]()
    names = ("prefect", "mlflow")
    first = planned_servers(settings_in(tmp_path / "a"), names, reservations=theirs, say=said.append)
    assert {plan.name: plan.port for plan in first} == usual
    assert said == []
    second = planned_servers(settings_in(tmp_path / "b"), names, reservations=ours, say=said.append)
    assert not {plan.port for plan in second} & set(usual.values())
    for port, line in zip(usual.values(), said, strict=True):
        assert f"its usual port {port} cannot be used: another `rlhf` of this machine" in line
    ours.release()
    theirs.release()


def test_a_port_that_was_named_is_refused_while_another_start_takes_it_and_had_behind_it(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ours, theirs = PortReservations(), PortReservations()
    assert theirs.take(port)
    assert theirs.take(port), "its own"
    named = replace(settings_in(tmp_path), prefect_port=port)
    with pytest.raises(ServerError, match=f"Port {port} for Prefect cannot be used: another `rlhf` of this machine"):
        planned_servers(named, ("prefect",), reservations=ours, say=print)
    theirs.release()
    (plan,) = planned_servers(named, ("prefect",), reservations=ours, say=print)
    assert plan.port == port
    ours.release()
