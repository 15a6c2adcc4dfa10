"""The table of language codes and names, as data columns and configs write them."""

UNKNOWN_LANGUAGE = "unknown"

_NAME_OF_CODE = {
    "af": "afrikaans", "am": "amharic", "ar": "arabic", "az": "azerbaijani", "be": "belarusian", "bg": "bulgarian",
    "bn": "bengali", "bs": "bosnian", "ca": "catalan", "cs": "czech", "cy": "welsh", "da": "danish", "de": "german",
    "el": "greek", "en": "english", "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque",
    "fa": "persian", "fi": "finnish", "fr": "french", "ga": "irish", "gl": "galician", "gu": "gujarati",
    "he": "hebrew", "hi": "hindi", "hr": "croatian", "hu": "hungarian", "hy": "armenian", "id": "indonesian",
    "is": "icelandic", "it": "italian", "ja": "japanese", "ka": "georgian", "kk": "kazakh", "kn": "kannada",
    "ko": "korean", "la": "latin", "lt": "lithuanian", "lv": "latvian", "mk": "macedonian", "ml": "malayalam",
    "mn": "mongolian", "mr": "marathi", "ms": "malay", "mt": "maltese", "nb": "norwegian", "ne": "nepali",
    "nl": "dutch", "nn": "norwegian", "no": "norwegian", "pa": "punjabi", "pl": "polish", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "si": "sinhala", "sk": "slovak", "sl": "slovenian", "so": "somali",
    "sq": "albanian", "sr": "serbian", "sv": "swedish", "sw": "swahili", "ta": "tamil", "te": "telugu",
    "th": "thai", "tl": "tagalog", "tr": "turkish", "uk": "ukrainian", "ur": "urdu", "uz": "uzbek",
    "vi": "vietnamese", "wuu": "chinese", "yo": "yoruba", "yue": "chinese", "zh": "chinese", "zu": "zulu",
}  # fmt: skip


def normalised_language(value: str | None) -> str:
    """The lower-case English name of a language; a name that is not in the table stays as it is.

    Example: `" English "`, `"en"` and `"en-GB"` are `english`; `None` and `""` are `unknown`; `"python"` is `python`.
    """
    name = (value or "").strip().lower()
    return _NAME_OF_CODE.get(name.replace("_", "-").split("-")[0], name) or UNKNOWN_LANGUAGE


def language_codes(name: str) -> tuple[str, ...]:
    """The ISO 639 codes of a language; empty where its name is not in the table."""
    return tuple(code for code, known in _NAME_OF_CODE.items() if known == name)


def language_names() -> tuple[str, ...]:
    """Every name in the table, sorted."""
    return tuple(sorted(set(_NAME_OF_CODE.values())))
