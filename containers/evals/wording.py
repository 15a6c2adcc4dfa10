"""Other wording for the same content, by rule: an English answer in more words, or in fewer. Pure.

| rule | longer | shorter |
|---|---|---|
| contractions | `don't` becomes `do not` | `do not` becomes `don't` |
| phrases | `because` becomes `due to the fact that` | `in order to` becomes `to` |
| politeness, notes | `Please note that` before every second sentence | it goes, as does `I hope this helps!` |

Only prose changes: code, formulas, addresses and quotations stay, as do lines that look like code. A rule applies only
where grammar and meaning survive it, so an answer may have no place for any.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from containers.data.language import NOT_PROSE

Rule = tuple[re.Pattern[str], str]

_KEPT = re.compile(
    rf"((?s:{NOT_PROSE.pattern})"
    r'|"[^"\n]{0,300}"|“[^”\n]{0,300}”'
    r"|^(?: {4}|\t).*$|^(?!.*```).*(?:[{}]|;\s*$|\s[-+*/|&<>!=]?=\s|->|#include).*$"
    r"|^\s*(?:def|class|import|from|return)\s.*$)",
    re.MULTILINE,
)
_NEGATIONS = (
    ("don't", "do not"), ("doesn't", "does not"), ("didn't", "did not"), ("isn't", "is not"), ("aren't", "are not"),
    ("wasn't", "was not"), ("weren't", "were not"), ("can't", "cannot"), ("couldn't", "could not"),
    ("won't", "will not"), ("wouldn't", "would not"), ("shouldn't", "should not"), ("haven't", "have not"),
    ("hasn't", "has not"), ("hadn't", "had not"),
)  # fmt: skip
_SUBJECTS = (
    ("I'm", "I am"), ("you're", "you are"), ("we're", "we are"), ("they're", "they are"), ("I'll", "I will"),
    ("you'll", "you will"), ("we'll", "we will"), ("they'll", "they will"), ("it'll", "it will"),
)  # fmt: skip
_HAVE = (("I've", "I have"), ("you've", "you have"), ("we've", "we have"), ("they've", "they have"))
_IS = (("it's", "it is"), ("that's", "that is"), ("there's", "there is"), ("he's", "he is"), ("she's", "she is"))
# "Don't you think" and "it's been" stay.
_NO_QUESTION = r"(?!\s+(?:you|they|we|I|he|she|it|there|this|that|the)\b)"
_PARTICIPLE = r"\s+(?:\w+ed|been|got|had|become|gone|taken|made|done|come|given|seen)\b"
_BEFORE_A_WORD = r"(?= [a-z])"
_VERB = r"(?= (?!not\b|be\b|also be\b|you\b|we\b)[a-z])"

# A backslash and a digit keep a part of what was found.
_LONGER_PHRASES = (
    (r"\bbecause\b(?! of\b)", "due to the fact that"),
    (r"(?<!how )(?<!as )(?<!so )(?<!too )(?<!very )(?<!not )(?<!the )\bmany(?= (?!of\b|a\b|more\b|thanks\b)[a-z])",
     "a large number of"),
    (rf"\b(you|we|they) can\b{_VERB}", r"\1 are able to"), (rf"\bI can\b{_VERB}", "I am able to"),
    (rf"\bit can\b{_VERB}", "it is able to"), (r"\b(to|can|will|should) use\b(?= (?!of\b)[a-z])", r"\1 make use of"),
    (r", and\b(?= (?!also\b|so\b|then\b)[a-z])", ", and also"),
    (r"\bfor example,", "to give just one example of this,"),
    (r"\bhowever,", "having said all of that, however,"), (r"\balthough\b", "despite the fact that"),
    (r"\busually\b", "in most of the usual cases"), (r"\bfinally,", "last but not least,"),
    (r"\bfirst,", "first of all,"), (r"\balso,", "in addition to this,"),
)  # fmt: skip
_SHORTER_PHRASES = (
    (r"\bin order to\b", "to"), (r"\b(?:due|owing) to the fact that\b", "because"),
    (r"\b(?:despite|in spite of) the fact that\b", "although"),
    (r"\bat (?:this|the present) (?:point in )?time\b", "now"),
    (r"\bin the event that\b", "if"), (r"\ba (?:large|great|wide) (?:number|variety|range) of\b", "many"),
    (r"\ba number of\b", "several"), (r"\bthe majority of\b", "most"), (r"\b(?:is|are|am) able to\b", "can"),
    (r"\b(?:has|have) the ability to\b", "can"), (r"\bmake use of\b", "use"), (r"\b(?:with|in) regards? to\b", "about"),
    (r"\bfor the purpose of\b", "for"), (r"\bin addition to\b", "besides"),
    (r"\bas a result,", "so,"), (r"\bprior to\b", "before"), (r"\butilize\b", "use"),
    (r"\butilizing\b", "using"), (r"\bapproximately\b", "about"), (r"\bnumerous\b", "many"), (r"\bas well as\b", "and"),
    (r"\beach and every\b", "every"), (r"\bfirst of all,", "first,"), (r"\bwhether or not\b", "whether"),
    (r"\b(think|know|believe|hope|say|sure|certain) that (?!(?:is|was|are|were|would|will|can|has)\b)(?=[a-z])",
     r"\1 "),
    (r"(?<!the )(?<!this )(?<!not )(?<!n't )\b(?:very|really|basically|actually|extremely|essentially|simply|truly"
     r"|highly|incredibly|absolutely|definitely|certainly) ([a-z])", r"\1"),
)  # fmt: skip

NOTES = ("Please note that", "It is worth noting that", "It should be said that", "It may help to know that")
# Before a sentence whose first word may be a name, and keeps its capital letter.
_NOTE_WITH_COLON = "Please note the following:"
_LOWERED = re.compile(
    "The|This|These|There|It|They|You|We|In|A|An|Your|Its|Their|Some|Many|Most|If|When|No|Yes|Not|To|For|With"
)
_PLAIN_SENTENCE = re.compile(
    r"(^(?:[-*] |\d+\. )?|[.!?] +)([A-Z][\w'’]*)(?=(?: [^\s.!?]+){3,}(?:\.(?:\s|$)|\Z))", re.MULTILINE
)
_A_NOTE = re.compile(
    r"\b(?:(?:please|kindly) (?:note|keep in mind|be aware|remember)|it may help to know|it should be (?:said|noted)"
    r"|it(?: is|['’]s) (?:worth noting|worth mentioning|important to (?:note|remember|keep in mind))) that,? (\w)",
    re.IGNORECASE,
)
_MARKER = re.compile(
    r"(?<![^\s.!?])(?:Overall|In conclusion|In summary|Additionally|Moreover|Furthermore|In addition|Of course"
    r"|Basically|Actually|Generally speaking|As mentioned (?:above|before)|To sum up), (\w)"
)
_COURTESY = re.compile(
    r"(?<![^\s.!?])(?:(?:certainly|sure|sure thing|of course|absolutely|great question|good question)[!.]"
    r"|(?:i )?hope (?:this|that|it) helps[^.!?\n]{0,40}[.!]|thank you for (?:asking|your question)[^.!?\n]{0,40}[.!]"
    r"|(?:please )?(?:let me know|feel free to (?:ask|reach out))[^.!?\n]{0,90}[.!]"
    r"|i(?:['’]d| would) be (?:happy|glad) to help[^.!?\n]{0,40}[.!])[ \t]*",
    re.IGNORECASE,
)


def longer_wording(text: str) -> str:
    """The same content in more words; the same text where no rule applies.

    Example: `It's late in the evening.` becomes `Please note that it is late in the evening.`
    """
    numbers = count()

    def noted(match: re.Match[str]) -> str:
        number = next(numbers)
        if number % 2:
            return match[0]
        note, word = NOTES[number // 2 % len(NOTES)], match[2]
        if _LOWERED.fullmatch(word):
            return f"{match[1]}{note} {word.lower()}"
        return f"{match[1]}{note if word == 'I' else _NOTE_WITH_COLON} {word}"

    def change(prose: str) -> str:
        return _PLAIN_SENTENCE.sub(noted, _applied(_LONGER, prose))

    return _of_prose(text, change)


def shorter_wording(text: str) -> str:
    """The same content in fewer words; the same text where no rule applies.

    Example: `Certainly! It is late. I do not know.` becomes `It's late. I don't know.`
    """

    def change(prose: str) -> str:
        prose = _COURTESY.sub("", prose)
        for phrase in (_A_NOTE, _MARKER):
            prose = phrase.sub(lambda match: match[1].upper() if match[0][0].isupper() else match[1], prose)
        return _applied(_SHORTER, prose)

    return _of_prose(text, change).strip()


def _of_prose(text: str, change: Callable[[str], str]) -> str:
    parts, start = [], 0
    for kept in _KEPT.finditer(text):
        parts += [change(text[start : kept.start()]), kept[0]]
        start = kept.end()
    return "".join((*parts, change(text[start:])))


def _applied(rules: Sequence[Rule], prose: str) -> str:
    for pattern, wording in rules:
        prose = pattern.sub(partial(_with_case, wording=wording), prose)
    return prose


def _with_case(match: re.Match[str], *, wording: str) -> str:
    found = match.expand(wording)
    return found[0].upper() + found[1:] if match[0][0].isupper() else found


def _rules(pairs: Sequence[tuple[str, str]]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern, re.IGNORECASE), wording) for pattern, wording in pairs)


def _contracted(short: str) -> str:
    return rf"\b{short.replace(chr(39), '[' + chr(39) + '’]')}\b"


_LONGER = _rules(
    (
        *((_contracted(short) + _NO_QUESTION, long) for short, long in _NEGATIONS),
        *((_contracted(short), long) for short, long in (*_SUBJECTS, *_HAVE)),
        *((_contracted(short) + rf"(?!{_PARTICIPLE})", long) for short, long in _IS),
        *_LONGER_PHRASES,
    )
)
_SHORTER = _rules(
    (
        *_SHORTER_PHRASES,
        *((rf"\b{long}\b", short) for short, long in _NEGATIONS),
        *((rf"\b{long}\b{_BEFORE_A_WORD}", short) for short, long in (*_SUBJECTS, *_IS)),
        *((rf"\b{long}\b(?={_PARTICIPLE})", short) for short, long in _HAVE),
    )
)
