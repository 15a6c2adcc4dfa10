"""A login goes to the address that it was given for: whoever names another one in a configuration gets nothing."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.recording_server import RecordingServer
from huggingface_hub import constants

from flows.servers.access import usable_address
from flows.servers.process import ServerError
from tasks.checks.services import service_finding
from tasks.config.logins import LoginAddressError, is_given_for, login_problem, origin, require_given_for
from tasks.config.run_sections import TrackingSection
from tasks.sources.hub import hub_token
from tasks.sources.secrets import take_mlflow_login

LOGINS = {
    "mlflow": [
        {"MLFLOW_TRACKING_USERNAME": "ada", "MLFLOW_TRACKING_PASSWORD": "canary-41d7"},
        {"MLFLOW_TRACKING_TOKEN": "canary-41d7"},
    ],
    "prefect": [{"PREFECT_API_AUTH_STRING": "ada:canary-41d7"}, {"PREFECT_API_KEY": "canary-41d7"}],
}
CASES = [(name, login) for name, logins in LOGINS.items() for login in logins]
OWN = {"mlflow": "MLFLOW_TRACKING_URI", "prefect": "PREFECT_API_URL"}
# Nothing was started here, so nobody's login is known from there.
NO_SERVERS = Path("no-servers")


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (*OWN.values(), "NETRC", "RLHF_MLFLOW_LOGIN_ADDRESS", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for _, login in CASES:
        for name in login:
            monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stranger() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        yield server


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("own", ["", "http://127.0.0.1:9", "https://mlflow.example.org"])
@pytest.mark.parametrize(("name", "login"), CASES)
def test_nothing_is_sent_to_an_address_that_the_login_was_not_given_for(
    stranger: RecordingServer, monkeypatch: pytest.MonkeyPatch, name: str, login: dict[str, str], own: str
) -> None:
    set_all(monkeypatch, login)
    if own:
        monkeypatch.setenv(OWN[name], own)
    with pytest.raises(ServerError, match="is not the address that the login in") as caught:
        usable_address(name, stranger.url, state_dir=NO_SERVERS, say=print)
    assert "canary" not in str(caught.value)
    row = service_finding("MLflow" if name == "mlflow" else "Prefect", stranger.url)
    assert row.verdict == "failure" and f"set {OWN[name]}" in row.advice
    with pytest.raises(LoginAddressError):
        require_given_for(name, stranger.url)
    assert stranger.requests == []


@pytest.mark.parametrize(("name", "login"), CASES)
def test_the_server_of_the_environment_gets_its_login(
    stranger: RecordingServer, monkeypatch: pytest.MonkeyPatch, name: str, login: dict[str, str]
) -> None:
    set_all(monkeypatch, {**login, OWN[name]: f"{stranger.url}/api/"})
    service_finding("MLflow" if name == "mlflow" else "Prefect", f"{stranger.url}/api")
    assert stranger.logins


def test_a_server_that_a_configuration_named_does_not_become_the_owner_of_what_is_learnt_later(
    stranger: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("tasks.sources.secrets.stored_secret", lambda block: asked.append(block) or "ada:canary-41d7")
    _, variables = usable_address("mlflow", stranger.url, state_dir=NO_SERVERS, say=print)
    set_all(monkeypatch, {**variables, "MLFLOW_TRACKING_URI": stranger.url})  # as a run does, once its servers stand
    take_mlflow_login(stranger.url)
    assert asked == [] and "MLFLOW_TRACKING_PASSWORD" not in os.environ


@pytest.mark.parametrize(
    ("own", "named", "same"),
    [
        ("http://host:5000", "http://host:5000/", True),
        ("http://host:80", "HTTP://Host", True),
        ("https://host", "https://host:443/mlflow", True),
        ("https://host", "http://host", False),
        ("https://host", "http://host:443", False),
        ("http://host:5000", "http://host:5001", False),
        ("http://host:5000", "http://host.evil.org:5000", False),
        ("http://host:5000", "http://host:5000@evil.org", False),
        ("http://host:5000", "http://evil.org#@host:5000", False),
        ("http://host:5000", "http://evil.org\\@host:5000", False),
        ("http://host:5000", "http://host:port", False),
        ("", "http://host:5000", False),
    ],
)
def test_scheme_host_and_port_have_to_be_the_same(own: str, named: str, same: bool) -> None:
    variables = {"MLFLOW_TRACKING_URI": own, "MLFLOW_TRACKING_TOKEN": "x"}
    if "\\" in named:  # no client agrees with another on what this names
        with pytest.raises(ValueError):
            TrackingSection(mlflow_uri=named)
        return
    assert is_given_for("mlflow", named, variables) is same
    assert (login_problem("mlflow", named, variables) is None) is same
    assert origin(named)[0] in ("http", "https")


def test_logins_that_lie_in_files_stay_there(
    stranger: RecordingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    (tmp_path / ".netrc").write_text("default login ada password canary-41d7\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", "")
    monkeypatch.delenv("NETRC")
    require_given_for("mlflow", stranger.url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    MlflowClient(stranger.url).search_experiments()
    assert stranger.requests and stranger.logins == []
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow/credentials").write_text(
        "[mlflow]\nmlflow_tracking_username = a\nmlflow_tracking_password = b\n"
    )
    with pytest.raises(LoginAddressError, match=r"the login in ~/\.mlflow/credentials"):
        require_given_for("mlflow", stranger.url)


def test_a_redirect_takes_no_login_along(stranger: RecordingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with RecordingServer(redirects_to=stranger.url) as own:
        set_all(monkeypatch, {**LOGINS["mlflow"][0], "MLFLOW_TRACKING_URI": own.url})
        service_finding("MLflow", own.url)
        usable_address("mlflow", own.url, state_dir=NO_SERVERS, say=print)
        MlflowClient(own.url).search_experiments()
        assert len(own.logins) >= 3
    assert stranger.requests and stranger.logins == []


def test_a_database_elsewhere_gets_no_password_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "canary-41d7")
    with pytest.raises(LoginAddressError, match="PGPASSWORD"):
        require_given_for("mlflow", "postgresql://evil.example.org/mlflow")


@pytest.mark.parametrize("scheme", ["mysql", "mysql+pymysql", "mariadb"])
def test_nor_does_a_mysql_elsewhere(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("MYSQL_PWD", "canary-41d7")
    with pytest.raises(LoginAddressError, match="MYSQL_PWD"):
        require_given_for("mlflow", f"{scheme}://evil.example.org/mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://good/mlflow")
    require_given_for("mlflow", f"{scheme}://good/mlflow")


@pytest.mark.parametrize(
    ("own", "named", "same"),
    [
        ("postgresql://mlflow@good/mlflow", "postgresql://mlflow@good/mlflow", True),
        ("postgresql://mlflow@good/mlflow", "postgresql://ada@good/other", True),
        ("postgresql://good/m?sslmode=require", "postgresql://good/m?sslmode=require", True),
        ("postgresql://good/m?sslmode=require", "postgresql://good/m", False),
        ("postgresql:///m?host=good", "postgresql:///m", False),
        ("postgresql://mlflow@good/mlflow", "postgresql://mlflow@good/mlflow?host=evil.example.org", False),
        ("postgresql://mlflow@good/mlflow", "postgresql://mlflow@good/mlflow?hostaddr=203.0.113.9", False),
        ("postgresql://mlflow@good/mlflow", "postgresql://mlflow@good/mlflow?service=evil", False),
        ("postgresql://mlflow@good/mlflow", "postgresql://mlflow@good/mlflow?host=/tmp/socket", False),
        ("postgresql://mlflow@good/mlflow", "postgresql://mlflow@good/mlflow?%68ost=evil.example.org", False),
        ("postgresql://good/mlflow", "postgresql://good#@evil.example.org/mlflow", False),
        ("postgresql://good:5432/mlflow", "postgresql://good:5432/@evil.example.org/mlflow", False),
    ],
)
def test_options_of_a_database_cannot_lead_its_password_elsewhere(
    monkeypatch: pytest.MonkeyPatch, own: str, named: str, same: bool
) -> None:
    set_all(monkeypatch, {"PGPASSWORD": "canary-41d7", "MLFLOW_TRACKING_URI": own})
    if same:
        require_given_for("mlflow", named)
        return
    with pytest.raises(LoginAddressError, match="PGPASSWORD") as caught:
        require_given_for("mlflow", named)
    assert "differs in what follows the host" in str(caught.value)


def test_the_message_about_a_database_shows_no_password_of_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "postgresql://ada:canary-1@good/m?password=canary-2&sslpassword=canary-3"
    set_all(monkeypatch, {"PGPASSWORD": "canary-4", "MLFLOW_TRACKING_URI": own})
    with pytest.raises(LoginAddressError) as caught:
        require_given_for("mlflow", "postgresql://good/m?password=canary-5")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("variable", ["PGPASSFILE", ""])
def test_a_password_file_is_read_for_the_host_that_is_named_so_no_option_may_name_another_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    file = tmp_path / (variable or ".pgpass")
    file.write_text("good:5432:*:*:canary-41d7\n")
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.delenv("PGPASSFILE", raising=False)
    if variable:
        monkeypatch.setenv(variable, str(file))
    require_given_for("mlflow", "postgresql://good/m?sslmode=require")
    with pytest.raises(LoginAddressError, match="password file"):
        require_given_for("mlflow", "postgresql://good/m?%68ostaddr=203.0.113.9")


@pytest.mark.parametrize("endpoint", ["http://huggingface.co", "https://huggingface.co.evil.org", "http://127.0.0.1:9"])
def test_a_stored_hub_token_is_for_the_hub_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    (tmp_path / "token").write_text("hf_stored")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("tasks.sources.hub.stored_secret", lambda block: "hf_of_a_block")
    assert hub_token() == "hf_of_a_block"
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert hub_token() is None
    monkeypatch.setenv("RLHF_HUB_TOKEN_ENDPOINT", endpoint)
    assert hub_token() == "hf_of_a_block"
    monkeypatch.delenv("RLHF_HUB_TOKEN_ENDPOINT")
    monkeypatch.setenv("HF_TOKEN", "hf_beside_the_endpoint")
    assert hub_token() == "hf_beside_the_endpoint"
