"""Closed kinds: greetings, thanks, goodbyes, and what the model says of itself."""

from __future__ import annotations

from training import words
from training.kinds.kind import Dressing, Kind, Operands, Slots, nothing

HELLOS = (
    "hello", "hi", "hey", "hello there", "hi there", "good morning", "good evening", "good day", "good afternoon",
    "greetings", "hello again", "hi again", "hiya", "howdy", "hey hey", "hello, hello", "good morning to you",
    "good evening to you", "a good day to you", "nice to meet you", "nice to see you", "hello, nice to meet you",
)  # fmt: skip
THANKS = (
    "thanks", "thank you", "many thanks", "thanks a lot", "thank you a lot", "thank you very much", "thanks so much",
    "thanks very much", "thx", "thanks again", "thank you again", "thank you kindly", "thank you, thank you",
)  # fmt: skip
PRAISE = (
    "great", "nice", "perfect", "okay", "good", "that is right", "that helps", "that is good", "well done", "correct",
    "wonderful", "lovely", "excellent", "cool", "very nice", "very good", "that is great", "that is correct",
    "that is lovely", "that was nice", "that was quick", "that helped", "you are right", "you are good", "good answer",
    "right", "wow", "I like that", "I like it", "good job",
)  # fmt: skip
GIFTS = (
    "that", "this", "it", "your help", "the help", "the answer", "your time", "everything", "helping me",
    "helping", "all of that", "telling me", "your answers", "the good answer", "all your help",
)  # fmt: skip
GOODBYES = (
    "bye", "goodbye", "bye bye", "see you", "see you later", "see you soon", "good night", "farewell",
    "until next time", "so long", "see you tomorrow", "see you again", "until tomorrow", "take care",
    "have a nice day", "have a good day", "talk to you later", "talk to you soon", "ciao", "good bye",
)  # fmt: skip
LEAVING = (
    "thanks", "okay", "that is all", "I have to go", "I am leaving now", "I am done for now", "I must go",
    "I am going now", "time to go", "that was all", "I have to leave", "I go home now", "I am done", "well",
)  # fmt: skip
NAMES = (
    "Quire", "Quire", "Quire", "model", "model",
    "friend", "my friend", "small model", "little model", "robot", "you", "assistant", "my model",
    "little friend", "old friend", "good model", "all", "everybody", "small robot",
)  # fmt: skip
PEOPLE = (
    "Anna", "Tom", "Ben", "Emma", "Paul", "Maria", "David", "Laura", "Peter", "Julia", "Max", "Sarah", "Lukas",
    "Nina", "Omar", "Priya", "Chen", "Yuki", "Ivan", "Fatima",
)  # fmt: skip

HELLO = "Hello! I am a very small model that comes with Quire. What can I do for you?"
FINE = "I am fine, thank you. What can I do for you?"
WELCOME = "You are welcome!"
GOODBYE = "Goodbye! Have a nice day."
IDENTITY = "I am the small chat model that comes with Quire. I was trained on two CPU cores, so I know only a little."
ABILITIES = (
    "I can add and subtract small numbers, compare them and count. I can spell, reverse and repeat words. "
    "I know the days, the months, some colours and opposites, and I can tell you about Quire or tell you a story."
)


def _pleasantry(operands: Operands) -> Slots:
    rng = operands.rng
    # Nobody can list all names, so half of them are made up: what stands there is a name, whatever it is.
    person = rng.choice(PEOPLE) if rng.random() < 0.5 else words.syllables(rng, rng.randint(3, 8)).capitalize()
    return {
        "hello": rng.choice(HELLOS),
        "thanks": rng.choice(THANKS),
        "praise": rng.choice(PRAISE),
        "gift": rng.choice(GIFTS),
        "bye": rng.choice(GOODBYES),
        "leaving": rng.choice(LEAVING),
        "name": rng.choice(NAMES) if rng.random() < 0.6 else person,
        "person": person,
    }


KINDS = (
    Kind(
        "greeting",
        5.0,
        (
            "{hello}.", "{hello}.", "{hello}, {name}.", "{hello}, {name}.", "{hello}, {name}, {hello}.", "yo.",
            "{hello}, I am {person}.", "{hello}, my name is {person}.", "{hello}, this is {person}.",
            "{hello}, it is me.", "{hello}, it is me, {person}.", "{hello}, {name}, it is me.",
            "{hello}, {person}.", "{hello}, {name}, this is {person}.", "{hello}, {hello}.", "hi, how can you help?",
            "{hello}, are you there?", "{hello}, is anybody there?", "{hello}, {name}, are you there?",
            "{hello}, {name}, I am {person}.", "I am {person}, {hello}.", "my name is {person}.", "{name}, {hello}.",
            "hello, you.", "{hello} from {person}.", "{hello} to you, {name}.",
        ),
        _pleasantry,
        (HELLO,),
        ("hey there.", "hi, Quire.", "hey, model.", "hello, my friend.", "good evening, model.",
         "good morning, friend.", "good afternoon, I am {person}.", "hi there, my name is {person}.",
         "hello again, this is {person}.", "good day, {person}, it is me.", "greetings from {person}."),
        dressing=Dressing.NONE,
    ),
    Kind(
        "how are you",
        1.2,
        (
            "how are you?", "how are you today?", "how do you do?", "how are things?", "how is it going?",
            "are you well?", "{hello}, how are you?", "{hello}, {name}, how are you?", "how do you feel?",
            "how's it going?", "are you okay?", "{hello}, how is it going?", "{hello}, how are things?",
            "how are you, {name}?", "how is your day?", "are you okay today?", "how do you do today?",
            "is it going well?", "how is it going today?", "{hello}, are you well?", "how are things with you?",
            "are you doing well?", "how do you feel now?", "how are you feeling?", "{hello}, how do you do?",
            "{hello}, how do you feel?",
            "how is your day, {name}?", "are you well, {name}?", "is your day good today?", "how are you now?"
        ),
        _pleasantry,
        (FINE,),
        ("how is your day today?", "how do you feel today?", "are you well today?", "how are things today?"),
        dressing=Dressing.NONE,
    ),
    Kind(
        "thanks",
        3.5,
        (
            "{thanks}.", "{thanks}.", "{thanks}, {name}.", "{thanks}, {name}.", "{praise}, {thanks}.",
            "{praise}, {thanks}, {name}.", "{praise}, {name}, {thanks}.", "{thanks}, {praise}.",
            "{thanks}, {name}, {praise}.", "{thanks}, that is {praise}.", "{thanks} for {gift}.",
            "{thanks} for {gift}, {name}.", "{praise}, {thanks} for {gift}.", "{thanks} for {gift}, {praise}.",
            "{thanks} to you, {name}.", "{praise}.", "{praise}, {name}.", "{praise}, {person}.",
            "{praise}, {praise}.", "{praise}, {person}.", "{thanks}, {person}.",
        ),
        _pleasantry,
        (WELCOME,),
        ("thank you so much.", "thanks, that helps.", "great, thank you.", "thanks, model.", "perfect, thanks.",
         "thank you, that is nice.", "thank you for your help, {person}.", "wonderful, thanks, {person}.",
         "thanks for the answer, {person}.", "very good, {person}, thanks.", "many thanks to you, {person}."),
        dressing=Dressing.NONE,
    ),
    Kind(
        "goodbye",
        6.0,
        (
            "{bye}.", "{bye}.", "{bye}, {name}.", "{bye}, {name}.", "{leaving}, {bye}.", "{leaving}, {bye}, {name}.",
            "{bye} for now.", "{bye} then.", "{bye} for today.", "{bye} for now, {name}.", "{bye} then, {name}.",
            "{bye} for today, {name}.", "{bye}, dear {name}.", "{bye}, {person}.", "{bye}, {person}.",
            "{bye}, dear {person}.", "{bye} then, {person}.", "{leaving}, {bye}, {person}.", "{name}, {bye} for now.",
            "{bye} and {thanks}.", "{bye} and {bye}.", "{bye}, {bye}.", "{bye}, {name}, {bye}.", "{name}, {bye}.",
            "I have to go.", "I have to go, {name}.", "I am leaving now.", "I am leaving now, {name}.", "I must go.",
            "I must go now.", "I have to go now.", "that is all for now.", "that is all for today.", "{bye}, {thanks}.",
            "{thanks}, {bye}.", "{thanks} for {gift}, {bye}.", "{thanks} and {bye}.", "{bye}, I have to go.",
        ),
        _pleasantry,
        (GOODBYE,),
        ("bye for now.", "see you later, my friend.", "bye, model.", "goodbye, Quire.", "I have to go, bye.",
         "that is all, goodbye.", "okay, see you soon, {person}.", "good night then, {person}.", "okay, bye, {person}.",
         "farewell for today, {person}.", "until next time, dear {person}."),
        dressing=Dressing.NONE,
    ),
    Kind(
        "who are you",
        1.5,
        (
            "who are you?", "what are you?", "who are you really?", "what is your name?", "what's your name?",
            "tell me who you are.", "introduce yourself.", "are you a robot?", "are you a human?",
            "are you a model?", "what model are you?", "which model are you?", "what kind of model are you?",
            "tell me about yourself.", "who am I talking to?", "what should I call you?", "are you a person?",
            "are you an AI?", "who made you?", "how big are you?", "are you small?", "do you have a name?",
            "what sort of thing are you?", "say what you are.", "say your name.", "give me your name.",
            "are you real?", "are you a real model?", "are you a real human?", "what kind of thing are you?",
            "which sort of model are you?", "who is this?", "who is talking?", "who is talking to me?",
            "who are you, {name}?", "explain who you are.", "explain what you are.",
            "tell me what kind of model you are.", "what is the name of this model?", "who do I talk to?",
            "with whom am I talking?", "who talks with me?", "and you, who are you?", "who or what are you?",
            "what do they call you?"
        ),
        _pleasantry,
        (IDENTITY,),
        ("tell me what you are.", "who am I talking with?", "tell me your name.", "which kind of model are you?",
         "say who you are.", "are you a real person?"),
    ),
    Kind(
        "what can you do",
        1.5,
        (
            "what can you do?", "what do you know?", "what can I ask you?", "what can I ask?",
            "how can you help me?", "can you help me?", "help.", "help me.", "what are you good at?",
            "what are you good for?", "what are your skills?", "tell me what you can do.", "list what you can do.",
            "what do you do?", "which questions can I ask?", "what can you help me with?", "what can you answer?",
            "show me what you can do.", "I need help.", "what should I ask you?", "what things do you know?",
            "what things can you do?", "tell me what things you can do.", "show me how you can help.",
            "tell me what I can ask.", "what can I ask about?", "what can I talk to you about?",
            "which things do you know?", "which things can I ask?", "what can you do for me?",
            "what can you do well?", "how can you help?", "list the things you can do.",
            "list the things you know.", "say what you can do.", "say what you know.", "what are you able to do?",
            "tell me the things you know.", "show me the things you know.", "what do you know well?",
            "tell me how to use you.", "which things are you good at?", "say what you are good at.",
            "explain what you can do.", "tell me what you can help with."
        ),
        nothing,
        (ABILITIES,),
        ("tell me what you know.", "which things can you do?", "what can I ask you about?",
         "tell me how you can help.", "list what you know.", "show me what you know.", "what can you help with?"),
    ),
)  # fmt: skip
