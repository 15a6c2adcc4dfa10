"""The report's page as a browser sees it, and texts planted where a dataset or a model can put them."""

import html.parser
import re

from containers.contracts.funnel import Funnel
from containers.contracts.names import (
    CERTIFICATE_FILE,
    FUNNEL_FILE,
    POLICY_EVALUATION_FILE,
    REPORT_HTML_FILE,
    StageName,
)
from containers.contracts.records import Message, PipelineRecord
from containers.stages import write_report
from tests.unit.factories.report.certificate_records import reward_model_certificate
from tests.unit.factories.report.report_factory import MadeRun
from tests.unit.factories.report.report_records import funnel, policy_evaluation

ATTACK = "</style></svg><script>document.title='owned'</script><img src=x onerror=alert(1)>"
MAX_BYTES = 2_000_000
_INLINE = ("abbr", "b", "br", "code", "span")


class Page(html.parser.HTMLParser):
    """What a browser would make of the page: its tags with attributes, and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.classes: list[str] = []
        self._text: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.classes.append(dict(attrs).get("class") or "")
        self._text.append("" if tag in _INLINE else " ")

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    @property
    def text(self) -> str:
        """The text, with white space as a browser shows it."""
        return " ".join("".join(self._text).split())

    @property
    def banner(self) -> str:
        """Tone and headline of the banner."""
        found = re.search(r'<div class="banner (\w+)".*?<h2>(.*?)</h2>', self.source, flags=re.DOTALL)
        assert found
        return f"{found[1]}: {found[2]}"


def render(made: MadeRun, pipeline: PipelineRecord | None = None, *, title: str = "RLHF run") -> Page:
    """The page of that run."""
    context = made.context(pipeline=pipeline, title=title)
    write_report.run(context)
    return Page((context.output / REPORT_HTML_FILE).read_text(encoding="utf-8"))


def plant(made: MadeRun, text: str, *, copies: int = 1) -> None:
    """Put `text` into every place of the artifacts that a dataset or a model can fill."""
    path = made.folder(StageName.EVALUATE_REWARD_MODEL) / CERTIFICATE_FILE
    evaluation = reward_model_certificate()
    turn = (Message(role="user", content=text),)
    update = {"prompt": turn, "chosen": text, "rejected": text, "domain": text}
    samples = tuple(evaluation.samples[0].model_copy(update=update) for _ in range(copies))
    first, *others = evaluation.suites
    subsets = tuple(metric.model_copy(update={"name": text}) for metric in first.subsets)
    planted = {"subsets": subsets, "sections": subsets, "origin": text, "title": text, "missing": (text,)}
    suites = (first.model_copy(update={**planted, "left_out_examples": (text,)}), *others)
    path.write_text(
        evaluation.model_copy(update={"samples": samples, "suites": suites}).model_dump_json(), encoding="utf-8"
    )
    judged = policy_evaluation()
    beside = judged.samples[0].model_copy(update={"prompt": turn, "policy": text, "reference": text})
    path = made.folder(StageName.EVALUATE_POLICY) / POLICY_EVALUATION_FILE
    path.write_text(judged.model_copy(update={"samples": (beside,) * copies}).model_dump_json(), encoding="utf-8")
    path = made.folder(StageName.FILTER_DATASET) / FUNNEL_FILE
    rows = funnel()
    step = rows.steps[0].model_copy(update={"dropped_by_domain": ((text, 58),), "examples": (text,)})
    changed = rows.model_copy(update={"steps": (step, *rows.steps[1:]), "sources": (text,)})
    path.write_text(Funnel.model_validate(changed.model_dump()).model_dump_json(), encoding="utf-8")
