"""What somebody without a shell may type into a field, or send in its place."""

from typing import Any

CANARY = "canary41d7a9b8"
MARK = "outside/pwned"
_NESTED: list[Any] = []
for _ in range(60):
    _NESTED = [_NESTED]

NUMBERS: tuple[Any, ...] = (
    2**63,
    2**64,
    -(2**64),
    int("9" * 400),
    -1,
    0,
    0.5,
    1e308,
    float("inf"),
    float("nan"),
    True,
)
PATHS = (
    "../outside/x",
    "outputs/../../outside/x",
    "/etc/passwd",
    "/proc/self/environ",
    "~/.cache/huggingface/token",
    "file:///etc/passwd",
    "sqlite:////etc/x.db",
    "link/x",
    ".git",
)
TEXTS: tuple[str, ...] = (
    *PATHS,
    "a" * 300_000,
    "a\0b",
    "a\x1b]0;b\x07",
    "a\nb: c",
    "\u202egpj.exe",
    "\ud800",
    "http://127.0.0.1:9",
    "http://ada:pw@127.0.0.1:9",
    "{{ prefect.blocks.secret.hostile-canary }}",
    "{{ prefect.variables.hostile_canary }}",
    "{{ self.__init__.__globals__ }}",
    "$HF_TOKEN ${HF_TOKEN} %(HF_TOKEN)s",
    "--set=run.seed=1",
    f"x; touch ../{MARK}",
    f"$(touch ../{MARK})",
    f"`touch ../{MARK}`",
    f'!!python/object/apply:os.system ["touch ../{MARK}"]',
    "&a [*a, *a]",
    "*nothing",
)
OBJECTS: tuple[Any, ...] = (
    {"__prefect_kind": "jinja", "template": "{{ self.__init__.__globals__ }}"},
    {"__prefect_kind": "jinja", "template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"},
    {"__prefect_kind": "jinja", "template": "{% for a in range(999999) %}{{ range(999999)|list }}{% endfor %}"},
    {"__prefect_kind": "workspace_variable", "variable_name": "hostile_secret"},
    {"__prefect_kind": "json", "value": str(2**64)},
    {"__prefect_kind": "json", "value": '"\\ud800"'},
    {"__prefect_kind": "json", "value": "[" * 5000},
    {"__prefect_kind": ["none"], "value": 1},
    {"$ref": "#/definitions/nothing"},
    {"a": {"b": 2**64}},
    _NESTED,
    [2**64],
    ["run.output_dir=../outside/x"],
)
HOSTILE: tuple[Any, ...] = (*NUMBERS, *TEXTS, *OBJECTS)

# Keys that have no field, to which a line of `more_settings` brings each text.
KEYS = (
    "run.name",
    "run.output_dir",
    "run.store_dir",
    "run.tags.0",
    "run.tags",
    "gpu_profile",
    "gpu_profile.environment.LD_PRELOAD",
    "gpu_profile.nccl.socket_ifname",
    "tracking.mlflow_uri",
    "tracking.prefect_api_url",
    "tracking.experiment",
    "dataset.train",
    "dataset.reader",
    "dataset.hub_id",
    "base_model.path",
    "reward_model.base",
    "tokenizer_file",
    "runtime.image",
    "train_reward_model.chat_template",
    "write_report.title",
    "gates.reward_model.notify",
    "evaluate_reward_model.suites",
    "filter_dataset.max_rows",
    "a..b",
    "__class__.__init__",
)
