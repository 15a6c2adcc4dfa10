"""The HTML page: templates from this package, every text escaped by Jinja's autoescape."""

from collections.abc import Mapping
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from containers import formatting as human_text
from containers.contracts.names import CERTIFICATE_PAGE_FILE, StageName
from containers.contracts.records import SCORE_TOLERANCE
from containers.report import sections
from containers.report.champions import decision_blocks
from containers.report.gates import gate_blocks
from containers.report.glossary import GLOSSARY
from containers.report.inputs import ReportInputs
from containers.report.plot import Plot
from containers.report.plots import undrawn_groups
from containers.report.verdict import absence, dag_nodes, headline_cards, run_verdict

_TEMPLATES = "report_templates"
_TEXT_LIMIT = 900
_MAX_TURNS = 6
_NAVIGATION = (
    ("champions", "Champion"),
    ("stages", "What ran"),
    ("gates", "Gates"),
    ("data", "Data"),
    ("reward-model", "Reward model"),
    ("policy", "Policy"),
    ("hardware", "Hardware"),
    ("lineage", "Lineage"),
    ("repeat", "How to repeat"),
    ("glossary", "Glossary"),
)


def report_html(inputs: ReportInputs, *, title: str, num_samples: int, plots: Mapping[str, tuple[Plot, ...]]) -> str:
    """Return the whole page as one document: no script, no request, nothing from outside."""
    html = page_environment().get_template("page.html.jinja").render(
        inputs=inputs,
        title=title,
        num_samples=num_samples,
        plots=plots,
        verdict=run_verdict(inputs),
        cards=headline_cards(inputs),
        nodes=dag_nodes(inputs),
        gates=gate_blocks(inputs),
        decisions=decision_blocks(inputs),
        navigation=[item for item in _NAVIGATION if inputs.decisions or item[0] != "champions"],
        funnel=inputs.funnel,
        dropped=sections.breakdowns(inputs.funnel) if inputs.funnel else (),
        data_findings=sections.data_findings(inputs.funnel) if inputs.funnel else (),
        unaccounted=sections.unaccounted_rows(inputs.funnel) if inputs.funnel else 0,
        training={stage: sections.training_facts(info) for stage, info in inputs.training.items()},
        machines=sections.machines(inputs),
        versions=sections.versions(inputs),
        descents=sections.descents(inputs),
        seed=inputs.seed,
        glossary=GLOSSARY,
        absence=absence,
        stage_note=sections.stage_note,
        ui_command=sections.ui_command(inputs.pipeline),
        undrawn=undrawn_groups(inputs),
        certificate_page=CERTIFICATE_PAGE_FILE,
        score_tolerance=SCORE_TOLERANCE,
        text_limit=_TEXT_LIMIT,
        max_turns=_MAX_TURNS,
    )  # fmt: skip
    return html.strip() + "\n"


def page_environment() -> Environment:
    """Return a Jinja environment with the templates and filters of all pages; it escapes every text."""
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=human_text.number,
        signed=lambda value: human_text.number(value, signed=True),
        percent=human_text.percent,
        quantity=human_text.quantity,
        interval=human_text.interval,
        duration=human_text.duration,
        shorten=human_text.shorten,
        oneline=human_text.one_line,
        humanize=human_text.humanize,
        humanize_first=lambda text: text[:1].upper() + text[1:],
        moment=human_text.moment,
        runtime=sections.runtime_text,
        stage_duration=sections.stage_duration,
        safe_url=sections.safe_url,
        mlflow_run_url=sections.mlflow_run_url,
        inline_svg=_inline_svg,
        stage=StageName,
    )
    return environment


def _template(name: str) -> str:
    return resources.files("containers.report").joinpath(_TEMPLATES, name).read_text(encoding="utf-8")


def _inline_svg(svg: str) -> Markup:
    """Matplotlib's own SVG, in which matplotlib has escaped every label."""
    return Markup(svg)  # noqa: S704
