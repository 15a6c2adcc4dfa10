"""Pages as HTML: one template for all blocks, every text escaped by Jinja's autoescape; no script, no request."""

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from containers import formatting
from containers.contracts.names import CERTIFICATE_PAGE_FILE
from containers.document.glossary import GLOSSARY
from containers.document.links import safe_url
from containers.document.model import Page, Plot, text_of
from containers.document.plot_style import VARIABLES

_TEMPLATES = "templates"
_TEXT_LIMIT = 900
_MAX_TURNS = 6


def page_html(page: Page) -> str:
    """Return the whole page as one document."""
    return _environment().get_template("page.html.jinja").render(
        page=page, glossary=GLOSSARY, text_limit=_TEXT_LIMIT, max_turns=_MAX_TURNS
    ).strip() + "\n"  # fmt: skip


@cache
def _environment() -> Environment:
    """Return the templates and their filters; each template is compiled once per process."""
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        text_of=text_of,
        quantity=formatting.quantity,
        signed=lambda value: formatting.number(value, signed=True),
        shorten=formatting.shorten,
        oneline=formatting.one_line,
        humanize_first=lambda text: text[:1].upper() + text[1:],
        href=_href,
        inline_svg=_inline_svg,
        explained=_explained,
    )
    return environment


def _href(link: str) -> str:
    """Return an address that a page may lead to: http, https, or the certificate beside it."""
    return link if link == CERTIFICATE_PAGE_FILE else safe_url(link)


def _inline_svg(plot: Plot) -> Markup:
    """Return a plot as wide as its place; its colours are the page's variables, so the dark theme recolours it."""
    svg = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _themed, plot.svg)
    label = escape(formatting.one_line(plot.title, 120))
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', lambda _: f'role="img" aria-label="{label}"', svg, count=1)
    return Markup(svg)  # noqa: S704 - matplotlib has escaped every label


def _themed(match: "re.Match[str]") -> str:
    variable = VARIABLES.get(match[2])
    return f"{match[1]}: var({variable})" if variable else match[0]


def _explained(text: str, terms: Sequence[str | tuple[str, str]]) -> Markup:
    """Return the text, escaped, in which the first of each term shows its meaning."""
    left = dict((term, term) if isinstance(term, str) else term for term in terms)
    parts = re.split(rf"\b({'|'.join(map(re.escape, left))})\b", text) if left else [text]
    shown = Markup()
    for part in parts:
        name = left.pop(part, "")
        shown += Markup('<abbr title="{}">{}</abbr>').format(GLOSSARY[name], part) if name else part
    return shown


def _template(name: str) -> str:
    return resources.files("containers.document").joinpath(_TEMPLATES, name).read_text(encoding="utf-8")
