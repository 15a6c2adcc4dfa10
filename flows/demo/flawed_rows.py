"""Rows of the demo data that a filter must find: other languages, code, and broken lines."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """A prompt with a better and a worse answer; `language` is what the row claims, not always what it is."""

    language: str
    prompt: str
    better: str
    worse: str


FOREIGN_EXCHANGES = (
    Exchange(
        "german",
        "Welches Tier lebt in dem kleinen Haus am Rand des Dorfes?",
        "In dem kleinen Haus am Rand des Dorfes lebt seit vielen Jahren ein alter Esel.",
        "Das weiß ich leider nicht, und es ist mir auch egal.",
    ),
    Exchange(
        "german",
        "Wie wird das Wetter morgen in den Bergen?",
        "Morgen regnet es am Vormittag, und am Nachmittag scheint in den Bergen die Sonne.",
        "Frag doch bitte jemand anderen nach dem Wetter.",
    ),
    Exchange(
        "german",
        "Kannst du mir erklären, warum der Himmel blau ist?",
        "Die Luft streut das blaue Licht der Sonne stärker als das rote.",
        "Weil ihn jemand so angestrichen hat.",
    ),
    Exchange(
        "french",
        "Quel animal habite dans la petite maison près de la rivière ?",
        "Un vieux cheval habite depuis longtemps dans la petite maison près de la rivière.",
        "Je ne sais pas, et cette question ne m'intéresse pas.",
    ),
    Exchange(
        "french",
        "Pourquoi les feuilles tombent-elles en automne ?",
        "Les arbres perdent leurs feuilles pour garder leur eau pendant l'hiver.",
        "Parce que personne ne les ramasse au printemps.",
    ),
    Exchange(
        "french",
        "Peux-tu me recommander un bon livre pour les vacances ?",
        "Je te recommande un roman de Jules Verne, facile à lire et plein d'aventures.",
        "Non, je n'ai pas envie de chercher un livre pour toi.",
    ),
    Exchange(
        "spanish",
        "¿Qué animal vive en la casa pequeña junto al río?",
        "En la casa pequeña junto al río vive un perro muy viejo desde hace muchos años.",
        "No lo sé y tampoco me importa mucho.",
    ),
    Exchange(
        "spanish",
        "¿Por qué el mar es salado?",
        "Los ríos llevan al mar las sales de las rocas, y el agua se evapora pero la sal se queda.",
        "Porque alguien tiró demasiada sal al agua.",
    ),
    Exchange(
        "spanish",
        "¿Cómo puedo aprender a cocinar arroz?",
        "Lava el arroz, añade dos partes de agua por cada parte de arroz y cocínalo a fuego lento.",
        "Es mejor que compres comida preparada.",
    ),
    Exchange(
        "chinese",
        "河边的小房子里住着什么动物？",
        "河边的小房子里住着一匹老马，已经很多年了。",
        "我不知道，也不想知道。",
    ),
    Exchange("chinese", "为什么天空是蓝色的？", "因为空气散射蓝光比散射红光更强。", "因为有人把它涂成了蓝色。"),
    Exchange("chinese", "你能推荐一本好书吗？", "我推荐《西游记》，故事有趣，也很容易读。", "不能，你自己去找吧。"),
    # Marked english although they are not: only the text shows it.
    Exchange(
        "english",
        "Warum schwimmt ein schweres Schiff auf dem Wasser?",
        "Ein Schiff verdrängt so viel Wasser, wie es selbst wiegt, und deshalb schwimmt es.",
        "Weil das Wasser das Schiff gern hat.",
    ),
    Exchange(
        "english",
        "Comment puis-je aller de la gare au musée ?",
        "Prenez le bus numéro douze devant la gare et descendez au troisième arrêt.",
        "Il vaut mieux rester chez vous aujourd'hui.",
    ),
    Exchange(
        "english",
        "¿Cuándo florecen los almendros en el sur de España?",
        "En el sur de España los almendros florecen casi siempre en el mes de febrero.",
        "Los almendros no florecen nunca, según creo.",
    ),
    Exchange("english", "怎样才能学好一门外语？", "每天练习听和说，并且多读简单的文章。", "学外语没有用，还是别学了。"),
)

CODE_EXCHANGES = (
    Exchange(
        "python",
        "Write a Python function that adds two numbers.",
        "def add(a, b):\n    return a + b",
        "def add(a, b):\n    return a - b",
    ),
    Exchange(
        "python",
        "How do I read a text file in Python?",
        'with open("notes.txt") as stream:\n    text = stream.read()',
        'text = open("notes.txt", "w")',
    ),
    Exchange(
        "javascript_html_css",
        "Show me a button that says hello.",
        "<button onclick=\"alert('hello')\">Hello</button>",
        "<p>hello</p>",
    ),
    Exchange(
        "cpp",
        "Print the numbers from one to three in C++.",
        "for (int i = 1; i <= 3; ++i) std::cout << i << '\\n';",
        "for (int i = 1; i < 3; ++i) std::cout << i;",
    ),
)


def _broken(**changes: object) -> str:
    row: dict[str, object] = {
        "domain": "general",
        "language": "english",
        "context": [{"role": "user", "content": "Which of these rows is broken?"}],
        "response1": "This row is broken.",
        "response2": "That row is broken.",
        "overall_preference": -1,
        "individual_preference": [{"score": -1, "reasoning": "", "feedback1": "", "feedback2": ""}],
    }
    return json.dumps({**row, **changes})


# One defect each.
BROKEN_LINES = (
    _broken(response1=None),
    _broken(response2=""),
    _broken(response1="These two are equal.", response2="These two are equal."),
    _broken(overall_preference=7),
    _broken(overall_preference="-2"),
    _broken(overall_preference=None),
    _broken(context=[]),
    _broken(context=[{"role": "narrator", "content": "Who speaks here?"}]),
    _broken(response2="One line that ends in the middle of")[:-60],
    "This line is no JSON at all.",
)
