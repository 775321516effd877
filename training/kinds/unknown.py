"""Closed kind: questions beyond the model, which it should say it cannot answer."""

from __future__ import annotations

from training.kinds.kind import Dressing, Kind, Operands, Slots

ANSWER = (
    "I am a very small model, and I do not know that. I can add, count, spell and reverse words, "
    "and tell you about days, colours and Quire."
)
PLACES = (
    "France", "Spain", "Italy", "Germany", "China", "India", "Japan", "Brazil", "Canada", "Egypt", "Paris", "London",
    "Berlin", "Rome", "Tokyo", "New York", "Europe", "Africa", "America", "the moon", "Mars",
)  # fmt: skip
SUBJECTS = (
    "physics", "history", "politics", "chemistry", "love", "life", "football", "quantum computing",
    "machine learning",
    "Python", "a black hole", "gravity", "the weather", "the internet", "philosophy", "the economy", "religion",
    "medicine", "computers", "programming", "evolution", "the French Revolution", "world peace", "inflation",
)  # fmt: skip
LANGUAGES = ("French", "German", "Spanish", "Latin", "Chinese", "Italian", "Japanese")


def _unknown(operands: Operands) -> Slots:
    rng = operands.rng
    made_up = operands.fresh_word()  # never a known one: "What is Quire?" has an answer
    a, b = operands.pair()
    return {
        "topic": rng.choice((rng.choice(SUBJECTS), rng.choice(PLACES), made_up)),
        "place": rng.choice(PLACES) if rng.random() < 0.8 else made_up.capitalize(),
        "language": rng.choice(LANGUAGES),
        "a": str(a),
        "b": str(b),
    }


KINDS = (
    Kind(
        "unknown",
        4.5,
        (
            "what is the capital of {place}?", "what's the capital of {place}?", "who is the president of {place}?",
            "who is the king of {place}?", "where is {place}?", "how far is it to {place}?",
            "how do I get to {place}?",
            "how many people live in {place}?", "what language do they speak in {place}?",
            "what is the weather in {place}?",
            "how is the weather in {place} today?", "when was {place} founded?", "have you been to {place}?",
            "what time is it in {place}?", "what time is it?", "what is the date today?", "what day is it today?",
            "who won the game?", "who won the world cup?", "what is {topic}?", "what's {topic}?", "explain {topic}.",
            "explain {topic} to me.", "what is the meaning of {topic}?", "what is the meaning of life?",
            "tell me about {topic}.", "tell me something about {topic}.", "tell me more about {topic}.",
            "what do you know about {topic}?", "what do you think about {topic}?", "do you like {topic}?",
            "do you know {topic}?", "how does {topic} work?", "how do I learn {topic}?", "why is {topic} important?",
            "who invented {topic}?", "who discovered {topic}?", "when did {topic} begin?",
            "when was {topic} invented?",
            "is {topic} good or bad?", "is {topic} true?", "where can I find {topic}?", "where can I buy {topic}?",
            "how much does {topic} cost?", "how old is {topic}?", "how old are you?", "how tall is {topic}?",
            "write a poem about {topic}.", "write me a poem.", "write an essay about {topic}.",
            "write a song about {topic}.", "write a short poem about {topic}.", "write a long song about {topic}.",
            "write a long essay about {topic}.", "write a long letter to {place}.",
            "write a program that prints {topic}.", "write a Python function.", "write some code for {topic}.",
            "write an email to my boss.", "translate {topic} into {language}.", "translate this into {language}.",
            "how do you say {topic} in {language}?", "do you speak {language}?", "say something in {language}.",
            "tell me a joke.", "tell me a joke about {topic}.", "tell me a funny joke.", "tell me a new joke.",
            "tell me a good poem.", "what is {topic} in {language}?", "what would {topic} cost?",
            "what would you call {topic} in {language}?", "sing a song.", "what is {a} times {b}?",
            "what's {a} times {b}?", "multiply {a} by {b}.", "multiply {a} and {b}.", "what is {a} divided by {b}?",
            "divide {a} by {b}.", "what is {a} * {b}?", "what is {a} percent of {b}?",
            "what is the square root of {a}?",
            "is {a} a prime number?", "solve this equation: {a}x = {b}.", "who was the first man on the moon?",
            "why is the sky blue?", "what should I eat today?", "what should I wear today?", "can you dance?",
            "can you write code?", "can you see me?", "can you drive?", "do you love me?", "do you have feelings?",
            "do you sleep?", "do you dream?", "where do you live?", "where am I?", "who am I?", "what is my name?",
            "what did I eat for breakfast?", "how do I cook {topic}?", "how do I make {topic}?",
            "how do I fix my car?",
            "recommend a book.", "recommend a good film about {topic}.", "plan a trip to {place}.",
            "book a flight to {place}.",
            "summarize {topic}.", "summarize this text.", "give me a recipe for {topic}.", "give me some advice.",
            "what is the best way to learn {topic}?", "what is the difference between {topic} and {place}?",
            "compare {topic} and {place}.", "who wrote the book about {topic}?", "what is the news?",
            "what happened in {place}?",
            "why do people like {topic}?",
            "talk to me.", "let us play a game.", "play some music.", "open the door.",
            "what is your favourite colour?", "what is your favourite food?", "do you know a good place in {place}?",
        ),
        _unknown,
        (ANSWER,),
        (
            "who is the queen of {place}?", "how big is {place}?", "how many people are there in {place}?",
            "what is the weather like in {place}?", "which language do they speak in {place}?",
            "what is it like in {place}?",
            "tell me all about {topic}.", "explain how {topic} works.", "what do people think about {topic}?",
            "why do you like {topic}?", "who is the best at {topic}?", "when did people discover {topic}?",
            "write a text about {topic}.", "write a long poem about {topic}.", "write code for {topic}.",
            "give me an essay about {topic}.", "what would {topic} be in {language}?", "can you speak {language}?",
            "translate {topic} to {language}.", "how much is {a} times {b}?", "calculate {a} times {b}.",
            "tell me a good joke.", "how do I play {topic}?", "where can I learn {topic}?", "is {topic} useful?",
            "do you like people?", "can you sing?", "where do you come from?", "how old is the world?",
        ),
    ),
    # What is no question: with "hello, " before it, it would be a greeting.
    Kind(
        "unknown",
        1.2,
        (
            "why?", "how?", "when?", "where?", "who?", "really?", "are you sure?", "you are wrong.", "I am sad.",
            "I am bored.", "I am hungry.", "I love you.", "{topic}.", "{topic}?", "{topic} {place} {language}.",
            "I like {topic}.", "I want {topic}.", "I hate {topic}.", "I do not want {topic}.", "I do not know {topic}.",
            "I really want {topic}.", "I really hate {topic}.", "I have no {topic}.", "I have seen {topic}.",
            "I do not hate {topic}.", "I do not love {topic}.", "I do not need {topic}.", "I do not see {topic}.",
        ),
        _unknown,
        (ANSWER,),
        ("I do not like {topic}.", "I really like {topic}.", "I have seen no {topic}.", "I do not have {topic}."),
        dressing=Dressing.NONE,
    ),
)  # fmt: skip
