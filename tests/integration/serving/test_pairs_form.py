"""People who never open a terminal judge pairs in Prefect while a policy trains.

Real Prefect server, real served deployment, real pipeline; only the model is tiny.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from approval_place import Place, opened_place
from prefect.client.schemas.objects import FlowRunInput

from containers.contracts.evidence import Evidence
from containers.contracts.names import EVIDENCE_FILE, StageName

pytestmark = [pytest.mark.slow, pytest.mark.stages]

CHANGES = (
    "evaluate_policy.judges=[{type: people, num_pairs: 8}]",
    "train_policy.evidence={judge: people, num_pairs: 8, steps: 12, num_prompts: 8, on_no_gain: note}",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[Place]:
    with opened_place(tmp_path_factory.mktemp("pairs"), project) as place, place.served():
        yield place


def form_of(place: Place, run_id: UUID) -> dict[str, Any]:
    """The schema of the form that the page of the suspended run shows."""
    state = place.flow_run(run_id).state
    assert state is not None and state.state_details.run_input_keyset is not None
    return dict(json.loads(place.client.read_flow_run_input(run_id, state.state_details.run_input_keyset["schema"])))


def responses(place: Place, run_id: UUID) -> list[FlowRunInput]:
    found = place.client.filter_flow_run_input(
        flow_run_id=run_id, key_prefix="suspended-", limit=200, exclude_keys=set()
    )
    return [item for item in found if item.key.endswith("-response")]


def test_pairs_are_judged_in_forms_while_the_policy_trains(place: Place) -> None:
    run_id = place.start("pairs", *CHANGES, until=("run.until=train_policy",))
    place.wait_for_state(run_id, "Suspended")
    (shown,) = place.prefect.shown("pairs")
    assert shown.tasks["train_policy"] == ["Waiting"]
    assert place.record("pairs").stages[-2].status in ("waits", "skipped")
    schema = form_of(place, run_id)
    assert list(schema["properties"])[:2] == ["by", "pair_1"] and schema["required"] == ["by"]
    assert "so far: no choice" in schema["properties"]["by"]["description"]
    pair = schema["properties"]["pair_1"]["description"]
    assert "**user:**" in pair and "**A**" in pair and "**B**" in pair and "reference" not in pair

    assert "does not match" in place.answer(run_id, by="../ada", pair_1="a tie")
    assert "not one of" in place.answer(run_id, by="ada", pair_1="policy")
    forms = 0
    while True:
        pairs = [name for name in form_of(place, run_id)["properties"] if name.startswith("pair_")]
        # The first answer leaves some for later.
        chosen = {name: "later" if not forms and name == "pair_2" else "A is better" for name in pairs}
        assert place.answer(run_id, by="ada", **chosen) == ""
        forms += 1
        state = place.wait_for_state(run_id, "Suspended", "Completed").state_name
        assert responses(place, run_id) == []  # taken
        if state == "Completed":
            break
        assert forms < 8
    assert forms >= 2  # one pair was left for later
    artifacts = place.folder / "outputs/pairs/artifacts"
    evidence = Evidence.model_validate_json((artifacts / StageName.TRAIN_POLICY / EVIDENCE_FILE).read_bytes())
    assert (evidence.judge, len(evidence.looks)) == ("people", 1)
    kept = [file.name for file in (place.folder / "outputs/store/verdicts/people").glob("*/by-*.jsonl")]
    assert kept and set(kept) == {"by-ada.jsonl"}
