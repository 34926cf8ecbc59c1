#!/usr/bin/env python3
"""make.py: writes the conversations of docs/tutorial.md, train.jsonl and held-out.jsonl, from the tables below.

    python3 data/talk/make.py [FOLDER]        FOLDER: where to write [the folder of this file]

A kind of question is a row of KINDS: a name; wordings; an answer, or several of which any is right; the facts that fill {x} and {y}; and what
an answer must contain to count as right. The last three wordings of every kind are never trained on: held-out.jsonl asks with them, and with the
same facts, and ask.py counts right answers. All of it is this project's own text (LICENSE).
"""
import json
import pathlib
import random
import sys

CAPITALS = """France Paris, Germany Berlin, Italy Rome, Spain Madrid, England London, Ireland Dublin, Portugal Lisbon, Greece Athens, Egypt Cairo,
    Japan Tokyo, China Beijing, Russia Moscow, Norway Oslo, Sweden Stockholm, Poland Warsaw, Austria Vienna, Cuba Havana, Peru Lima"""
SOUNDS = "dog woof, cat meow, cow moo, sheep baa, duck quack, lion roar, pig oink, horse neigh, bee buzz, snake hiss, mouse squeak, owl hoot"
YOUNG = "dog puppy, cat kitten, cow calf, sheep lamb, duck duckling, lion cub, pig piglet, horse foal, hen chick, goat kid, frog tadpole, swan cygnet"
LEGS = "dog four, cat four, cow four, horse four, bird two, duck two, hen two, spider eight, fly six, bee six, ant six, snake no, fish no, crab ten"
HOMES = """fish in water, bird in a nest, bee in a hive, spider in a web, dog in a kennel, horse in a stable, pig in a sty, bear in a cave, lion in a den,
    camel in the desert, monkey in the jungle, penguin on the ice"""
COLORS = """sky blue, grass green, snow white, coal black, banana yellow, blood red, orange orange, sea blue, lemon yellow, leaf green, milk white,
    rose red, mud brown, chocolate brown, night black, strawberry red"""
OPPOSITES = """hot cold, big small, fast slow, day night, up down, happy sad, old young, open closed, light dark, hard soft, full empty, rich poor,
    good bad, wet dry, near far, early late, strong weak, high low, long short, loud quiet"""
PLURALS = """mouse mice, foot feet, tooth teeth, child children, man men, woman women, goose geese, leaf leaves, knife knives, wolf wolves,
    box boxes, city cities, sheep sheep, ox oxen"""
PAST = """go went, eat ate, see saw, run ran, sing sang, write wrote, buy bought, think thought, give gave, take took, find found, know knew,
    swim swam, speak spoke"""
USES = """hammer driving nails, knife cutting, spoon eating soup, pen writing, clock telling the time, lamp giving light, key opening a door,
    broom sweeping the floor, umbrella keeping dry in the rain, bed sleeping, oven baking bread, boat crossing water, needle sewing, map finding the way"""
TASTES = "lemon sour, sugar sweet, honey sweet, salt salty, coffee bitter, vinegar sour, sea water salty, cake sweet, pepper hot, chili hot"
MAKERS = """Hamlet Shakespeare, Macbeth Shakespeare, Romeo and Juliet Shakespeare, King Lear Shakespeare, bread a baker, shoes a shoemaker,
    honey a bee, milk a cow, wine a winemaker, houses a builder"""
FRENCH = "hello bonjour, thank you merci, yes oui, no non, cat chat, dog chien, water eau, bread pain, friend ami, house maison"
GERMAN = "hello hallo, thank you danke, yes ja, no nein, cat Katze, dog Hund, water Wasser, bread Brot, friend Freund, house Haus"
ANIMALS = "dog cat cow lion horse sheep duck owl".split()
THINGS = "hammer spoon lamp table chair stone shoe boat".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
SIZES = "mouse cat, cat dog, dog horse, horse elephant, ant mouse, bee bird, sheep cow, fly frog, boat ship, village city, hill mountain, pond lake"
NAMES = "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karl Lena Max Nora Otto Paul Rosa Sam Tom Vera".split()
TERMS = {
    "a token": "A token is a piece of text: a byte, a part of a word, or a word.",
    "an expert": "An expert is a small network. In a mixture each token goes to only a few of many experts.",
    "a router": "A router is the part that chooses the experts for each token.",
    "a mixture of experts": "A mixture of experts is a model in which each token uses only some of the weights.",
    "attention": "Attention lets each token look at the tokens before it.",
    "the loss": "The loss says how surprised the model is by the next token. Lower is better.",
    "a checkpoint": "A checkpoint is a saved state of the training, from which it can go on.",
    "a learning rate": "The learning rate is the size of the steps in which the weights change.",
    "a gradient": "A gradient says in which direction each weight should change to lower the loss.",
    "a parameter": "A parameter is one of the numbers that a model learns.",
    "a tokenizer": "A tokenizer cuts text into tokens and gives each a number.",
    "a GPU": "A GPU is a chip that multiplies many numbers at the same time.",
}


LONG_NAMES = ("thank you", "sea water", "Romeo and Juliet", "King Lear")


def facts(text):
    """The pairs (x, y) of a table: x is the first word of a row, or one of LONG_NAMES; y is the rest."""
    rows = [" ".join(row.split()) for row in text.split(",")]
    names = [next((name for name in LONG_NAMES if row.startswith(name)), row.split()[0]) for row in rows]
    return [(x, row[len(x) + 1:]) for x, row in zip(names, rows)]


def a(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def after(names, step=1):
    return [(x, names[(i + step) % len(names)]) for i, x in enumerate(names)]


MASS = "grass snow coal blood milk mud chocolate night".split()             # without an article
SINGLE = "banana lemon leaf rose strawberry".split()
SUMS = [(f"{NUMBERS[i]} plus {NUMBERS[j]}", NUMBERS[i + j]) for i in range(1, 7) for j in range(1, 7)]
YESNO = [(x, "Yes") for x in ANIMALS] + [(x, "No") for x in THINGS]

# name, wordings (the last three are held out), answers, facts (None: none), what a right answer contains ("" is {y})
KINDS = [
    ("greeting", ["Hello!", "Hi!", "Hello there!", "Good morning!", "Hey!", "Good evening!", "Hello, good morning!", "Hi, good day to you!",
                  "Greetings!", "Hello, you!", "Good afternoon!", "Welcome!", "Hi there!", "Good day!", "Hello again!"],
     ["Hello! What would you like to know?", "Hello! How can I help you?"], None, "Hello"),
    ("how are you", ["How are you?", "How are you today?", "Are you well?", "How do you feel?", "How is it going?", "Hello, how are you?",
                     "How are you doing?", "Are you feeling well?", "How do you do today?", "Hi, how are you?", "And you, are you well?",
                     "And how do you do?", "How do you feel today?", "And how are you?", "Tell me how you are."],
     ["I am well, thank you. And you?"], None, "well"),
    ("name", ["What is your name?", "Who are you?", "Tell me your name.", "Do you have a name?", "What are you called?", "May I ask your name?",
              "What should I call you?", "Do you have another name?", "What name do you have?", "By what name should I call you?",
              "Your name, please.", "Say what your name is.", "And what is your name?", "Please tell me what your name is.",
              "Who am I talking to? What is your name?", "Could you tell me your name?"],
     ["I am a small mixture of experts, and I have no other name."], None, "mixture"),
    ("maker", ["Who made you?", "Who trained you?", "Where do you come from?", "Who built you?", "How were you made?", "Who is your maker?",
               "Do you know who made you?", "Tell me who built you.", "Who was it that trained you?", "Do you know where you come from?",
               "Tell me where you come from.", "By whom were you made?", "Tell me who made you.", "Do you know who trained you?",
               "Who was your maker?"],
     ["I was trained on this computer, by you."], None, "by you"),
    ("size", ["How big are you?", "How large are you?", "How many parameters do you have?", "Are you a large model?", "What is your size?",
              "Are you big?", "How many parameters are in you?", "Tell me how big you are.", "Are you a small model?", "What size do you have?",
              "How big a model are you?", "Do you know how large you are?", "How large a model are you?", "How many parameters are you made of?",
              "How large is your model?"],
     ["I am very small: about two million parameters."], None, "million"),
    ("abilities", ["What can you do?", "What do you know?", "How can you help me?", "What can I ask you?", "What are you good at?", "Help!",
                   "What may I ask you?", "Tell me what you know.", "What questions can I ask?", "What kinds of questions can you answer?",
                   "What else can you do?", "Tell me what I can ask you.", "What can I ask?", "Tell me what you can do.",
                   "What sort of questions do you know?"],
     ["I can answer a few dozen kinds of simple questions, about animals, words, numbers and models like me."], None, "questions"),
    ("human", ["Are you a human?", "Are you a person?", "Are you a robot?", "Are you alive?", "Are you real?", "Are you a machine?", "Are you human?",
               "Tell me, are you a robot?", "Are you a living thing?", "Am I talking to a person?", "Are you a program?",
               "Tell me if you are a person.", "Are you a real person?", "Tell me, are you human?", "Am I talking to a machine?"],
     ["No, I am a program: a language model."], None, "program"),
    ("thanks", ["Thank you!", "Thanks!", "Thank you very much.", "Many thanks!", "Thanks a lot!", "That was helpful, thank you.",
                "Thanks, that was all.", "Thank you for your help.", "Thank you, that helped me.", "Thanks for the answer.",
                "Thank you, that is what I wanted.", "Thanks so much!", "Thanks, that is all I wanted to know.", "Thank you so much!",
                "Thank you, my friend."],
     ["You are welcome!"], None, "welcome"),
    ("goodbye", ["Goodbye!", "Bye!", "See you later!", "Good night!", "I have to go.", "See you tomorrow!", "Bye, see you soon!",
                 "Bye, bye, my friend!", "Goodbye, my friend!", "See you!", "Goodbye for today.", "Bye for now!", "Bye bye!", "Goodbye, see you!",
                 "I have to go now. Goodbye!"],
     ["Goodbye! Come back soon."], None, "Goodbye"),
    ("joke", ["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "A joke, please.", "I want to hear a joke.",
              "Tell me one more joke.", "Can you make me laugh?", "Please say something funny.", "Can you say something funny?",
              "Tell a joke, please.", "Do you have a joke for me?", "Please tell me a joke.", "Can you tell a joke?", "Let me hear a joke."],
     ["Why did the expert get no tokens? Because it lost its balance.", "What does a router say at night? Two experts, please."], None, "exper"),
    ("story", ["Tell me a story about {x}.", "Do you know a story about {x}?", "I want to hear a story about {x}.", "A story about {x}, please.",
               "Write a story about {x}.", "Can you tell a story about {x}?", "Tell a short story about {x}.", "Please write a story about {x}.",
               "Make a story about {x}.", "Can you make up a short story? Let it be about {x}.", "Tell me some story about {x}.",
               "Write me a short story about {x}.", "Please tell me a short story about {x}.", "Make up a story about {x}.",
               "Let me hear a story about {x}."],
     ["Once there was {x} who lived near a river. One day it met a friend, and they played until night. Then it went home and slept."],
     [(a(n), f"there was {a(n)}") for n in "dog cat lion horse mouse bird frog bear".split()], ""),
    ("poem", ["Write a poem about {x}.", "A poem about {x}, please.", "Do you know a poem about {x}?", "Can you write a poem about {x}?",
              "Make a rhyme about {x}.", "I want a poem about {x}.", "Write me a short poem about {x}.", "Some verse about {x}, please.",
              "Please make a poem about {x}.", "Give me a few lines of a poem about {x}.", "Write verse about {x}.", "Tell me a poem about {x}.",
              "Please write me a poem about {x}.", "Write some lines of verse about {x}.", "Let me hear a poem about {x}."],
     ["O {x}, so fair and bright, you bring us joy both day and night."],
     [(n, f"O {n}") for n in "summer,winter,the sea,the moon,the sun,spring,music,love".split(",")], ""),
    ("capital", ["What is the capital of {x}?", "Which city is the capital of {x}?", "Tell me the capital of {x}.", "Name the capital of {x}.",
                 "What city is the capital of {x}?", "Do you know the capital of {x}?", "{x} has which capital?", "What is the capital city of {x}?",
                 "Please name the capital of {x}.", "What is the name of the capital of {x}?", "{x}: what is its capital?",
                 "The capital of {x} is which city?", "Can you tell me the capital of {x}?", "The capital of {x}, please.",
                 "Can you name the capital of {x}?", "I forgot the capital of {x}. What is it?", "Which city is the capital city of {x}?"],
     ["The capital of {x} is {y}."], facts(CAPITALS), ""),
    ("country", ["Which country is {y} the capital of?", "{y} is the capital of which country?", "In which country is {y}?", "Where is {y}?",
                 "Tell me where {y} is.", "What country is {y} in?", "{y} is in which country?", "Can you tell me where {y} is?",
                 "{y}: in which country is it?", "Name the country of {y}.", "Where in the world is {y}?", "Please tell me which country {y} is in.",
                 "The city of {y} is in which country?", "Do you know where {y} is?", "Which country is {y} in?",
                 "Tell me the country where {y} is."],
     ["{y} is in {x}."], facts(CAPITALS), "{x}"),
    ("sound", ["What sound does {a} make?", "What does {a} say?", "How does {a} sound?", "Which sound does {a} make?", "What noise does {a} make?",
               "Tell me the sound of {a}.", "Can you tell me what {a} says?", "What do you hear from {a}?", "{A}: what sound does it make?",
               "Name the sound that {a} makes.", "What sound comes from {a}?", "Do you know what {a} says?", "What sound do you hear from {a}?",
               "Do you know what sound {a} makes?", "Which noise does {a} make?"],
     ["{A} says {y}."], facts(SOUNDS), ""),
    ("young", ["What is a young {x} called?", "What do you call a young {x}?", "What is the young of {a} called?", "What is a baby {x} called?",
               "What do you call a baby {x}?", "Name the young of {a}.", "Tell me the name of a young {x}.", "What name has a young {x}?",
               "{A} has young: what are they called?", "Can you tell me what a young {x} is called?", "Do you know the name of a young {x}?",
               "What is the word for a baby {x}?", "What is the name of a baby {x}?", "Do you know what a young {x} is called?",
               "What would you call a baby {x}?"],
     ["A young {x} is called a {y}."], facts(YOUNG), ""),
    ("legs", ["How many legs does {a} have?", "How many legs has {a}?", "Tell me how many legs {a} has.", "Count the legs of {a}.",
              "{A} has how many legs?", "What number of legs does {a} have?", "Can you tell me how many legs {a} has?", "{A}: how many legs?",
              "On how many legs does {a} go?", "How many legs are on {a}?", "Say how many legs {a} has.", "What is the number of legs of {a}?",
              "Do you know how many legs {a} has?", "How many legs are there on {a}?", "Please count the legs of {a}."],
     ["{A} has {y} legs."], facts(LEGS), "{y} legs"),
    ("home", ["Where does {a} live?", "Where do you find {a}?", "What is the home of {a}?", "In what place does {a} live?", "Where is {a} at home?",
              "Tell me where {a} lives.", "Can you tell me where {a} lives?", "Where can I find {a}?", "{A}: where does it live?",
              "Which place is the home of {a}?", "Where should I look for {a}?", "Where would {a} live?", "Do you know where {a} lives?",
              "Where would I find {a}?", "In which place do you find {a}?"],
     ["{A} lives {y}."], facts(HOMES), ""),
    ("color", ["What color is {t}?", "Which color is {t}?", "What is the color of {t}?", "Tell me the color of {t}.", "What color does {t} have?",
               "Which color does {t} have?", "Can you tell me the color of {t}?", "Name the color of {t}.", "Say what color {t} is.",
               "What color do you think {t} is?", "{T}: what color is it?", "Which color would you give {t}?", "Do you know the color of {t}?",
               "What color would you say {t} is?", "Please tell me the color of {t}."],
     ["The color of {t} is {y}."], facts(COLORS), "is {y}"),
    ("opposite", ["What is the opposite of {x}?", "Tell me the opposite of {x}.", "Which word is the opposite of {x}?", "Name the opposite of {x}.",
                  "Give me the opposite of {x}.", "{x} is the opposite of what?", "Can you tell me the opposite of {x}?",
                  "{x}: what is the opposite?", "I forgot the opposite of {x}. What is it?", "Please name the opposite of {x}.",
                  "What would be the opposite of {x}?", "Which word means the opposite of {x}?", "What word means the opposite of {x}?",
                  "Do you know the opposite of {x}?", "What would you call the opposite of {x}?"],
     ["The opposite of {x} is {y}."],
     facts(OPPOSITES) + [(y, x) for x, y in facts(OPPOSITES)], "is {y}"),
    ("plural", ["What is the plural of {x}?", "Tell me the plural of {x}.", "Which word is the plural of {x}?", "Give me the plural of {x}.",
                "Name the plural of {x}.", "What do you call more than one {x}?", "Can you tell me the plural of {x}?", "{x}: what is the plural?",
                "I forgot the plural of {x}. What is it?", "Please name the plural of {x}.", "How do you write the plural of {x}?",
                "One {x}, many what?", "Do you know the plural of {x}?", "How do I write the plural of {x}?",
                "Which word is used for more than one {x}?"],
     ["The plural of {x} is {y}."], facts(PLURALS), "is {y}"),
    ("past", ["What is the past of {x}?", "Tell me the past tense of {x}.", "What is the past tense of {x}?", "Give me the past of {x}.",
              "Name the past tense of {x}.", "Today I {x}. What did I do yesterday?", "Can you tell me the past of {x}?", "{x}: what is the past?",
              "I forgot the past tense of {x}. What is it?", "Which word is the past of {x}?", "Please name the past of {x}.",
              "Do you know the past of {x}?", "Do you know the past tense of {x}?", "Which word is the past tense of {x}?",
              "Please give me the past tense of {x}."],
     ["The past of {x} is {y}."], facts(PAST), "is {y}"),
    ("use", ["What is {a} for?", "What do you use {a} for?", "What can I do with {a}?", "What is the use of {a}?", "Why do people have {a}?",
             "Tell me what {a} is for.", "Can you tell me what {a} is for?", "{A}: what is it for?", "What is {a} used for?",
             "I have {a}. What can I do with it?", "What would you do with {a}?", "For what do people use {a}?", "What do people use {a} for?",
             "Do you know what {a} is used for?", "What do we use {a} for?"],
     ["{A} is for {y}."], facts(USES), ""),
    ("taste", ["How does {x} taste?", "What is the taste of {x}?", "What does {x} taste like?", "Tell me how {x} tastes.", "Is {x} sweet or sour?",
               "Which taste has {x}?", "Can you tell me how {x} tastes?", "{x}: how does it taste?", "I forgot how {x} tastes. Do you know?",
               "Which taste does {x} have?", "Name the taste of {x}.", "What taste has {x}?", "Do you know how {x} tastes?",
               "What taste does {x} have?", "Please tell me what {x} tastes like."],
     ["The taste of {x} is {y}."], facts(TASTES), ""),
    ("who makes", ["Who makes {x}?", "Who made {x}?", "Who is the maker of {x}?", "Tell me who makes {x}.", "By whom is {x} made?",
                   "{x}: who made it?", "Can you tell me who makes {x}?", "Who is it that makes {x}?", "I forgot who made {x}. Who was it?",
                   "Name the maker of {x}.", "Do you know who made {x}?", "Who was the maker of {x}?", "Do you know who makes {x}?",
                   "Who was it that made {x}?", "Please tell me who made {x}."],
     ["The maker of {x} is {y}."], facts(MAKERS), ""),
    ("French", ["What is {x} in French?", "How do you say {x} in French?", "Say {x} in French.", "Translate {x} into French.",
                "{x} in French, please.", "Tell me the French word for {x}.", "Can you say {x} in French?", "What is the word for {x} in French?",
                "I forgot {x} in French. What is it?", "Please say {x} in French.", "What do the French say for {x}?", "Translate to French: {x}.",
                "What is the French word for {x}?", "Please translate {x} to French.", "Give me the French word for {x}."],
     ["In French, {x} is {y}."], facts(FRENCH), ""),
    ("German", ["What is {x} in German?", "How do you say {x} in German?", "Say {x} in German.", "Translate {x} into German.",
                "{x} in German, please.", "Tell me the German word for {x}.", "Can you say {x} in German?", "What is the word for {x} in German?",
                "I forgot {x} in German. What is it?", "Please say {x} in German.", "What do Germans say for {x}?", "Translate to German: {x}.",
                "What is the German word for {x}?", "Please translate {x} to German.", "Give me the German word for {x}."],
     ["In German, {x} is {y}."], facts(GERMAN), ""),
    ("animal or thing", ["Is {a} an animal?", "Tell me, is {a} an animal?", "Are you sure that {a} is an animal?", "Would you say {a} is an animal?",
        "{A} is an animal, right?", "Is {a} an animal or a thing?", "{A}: is it an animal?", "Do you know if {a} is an animal?",
        "Can you say if {a} is an animal?", "I think {a} is an animal. Is it?", "Could {a} be an animal?", "Tell me if {a} is an animal.",
        "Do you think {a} is an animal?", "Can you tell me if {a} is an animal?", "Is it true that {a} is an animal?"],
     ["{y}, {a} is {n}."], YESNO, ""),
    ("larger", ["What is larger, {x} or {z}?", "Which is larger, {x} or {z}?", "Which is bigger, {x} or {z}?", "Is {x} larger than {z}?",
                "What is bigger, {z} or {x}?", "Is {z} bigger than {x}?", "Tell me which is bigger, {x} or {z}.", "{x} or {z}: which is larger?",
                "Which of the two is larger, {z} or {x}?", "Is {x} bigger than {z}?", "Which one is bigger, {z} or {x}?",
                "Do you know which is larger, {x} or {z}?", "Tell me which is larger, {z} or {x}.", "Which of them is bigger, {x} or {z}?",
                "Which is the bigger one, {x} or {z}?"],
     ["{Y} is larger."], [(a(x), a(y)) for x, y in facts(SIZES)], "{Y} is"),
    ("next day", ["What day comes after {x}?", "Which day is after {x}?", "Today is {x}. What day is tomorrow?", "What comes after {x}?",
                  "Tell me the day after {x}.", "Which day follows {x}?", "Can you tell me the day after {x}?", "It is {x}. What day is tomorrow?",
                  "Name the day after {x}.", "Do you know what day comes after {x}?", "If it is {x} now, what day comes next?",
                  "{x} is over. Which day comes now?", "Name the day that comes after {x}.", "If today is {x}, what day is tomorrow?",
                  "Which day do we have after {x}?"],
     ["After {x} comes {y}."], after(DAYS), ""),
    ("day before", ["What day comes before {x}?", "Which day is before {x}?", "Today is {x}. What day was yesterday?", "What comes before {x}?",
                    "Tell me the day before {x}.", "Which day was before {x}?", "Can you tell me the day before {x}?",
                    "It is {x}. What day was yesterday?", "Name the day before {x}.", "Do you know what day comes before {x}?",
                    "If it is {x} now, what day was before?", "Which day comes just before {x}?", "Name the day that comes before {x}.",
                    "If today is {x}, what day was yesterday?", "Which day do we have before {x}?"],
     ["Before {x} comes {y}."], after(DAYS, -1), ""),
    ("next month", ["What month comes after {x}?", "Which month is after {x}?", "What comes after {x}?", "Tell me the month after {x}.",
                    "Which month follows {x}?", "It is {x}. What is the next month?", "Can you tell me the month after {x}?",
                    "Name the month after {x}.", "Do you know the month after {x}?", "{x} is over. Which month comes now?",
                    "Which month comes after {x}?", "If it is {x}, what is the next month?", "Name the month that comes after {x}.",
                    "Do you know which month comes after {x}?", "Which month do we have after {x}?"],
     ["After {x} comes {y}."], after(MONTHS), ""),
    ("next number", ["What number comes after {x}?", "What comes after {x}?", "Which number is after {x}?", "Tell me the number after {x}.",
                     "Count on from {x}.", "Which number follows {x}?", "Can you tell me the number after {x}?", "Name the number after {x}.",
                     "Do you know the number after {x}?", "I count to {x}. What comes next?", "Which number comes after {x}?",
                     "After {x}, what number comes?", "Name the number that comes after {x}.", "Do you know which number comes after {x}?",
                     "Which number do I say after {x}?"],
     ["After {x} comes {y}."], after(NUMBERS)[:-1], ""),
    ("sum", ["What is {x}?", "How much is {x}?", "Tell me what {x} is.", "Add: {x}.", "{x}, please.", "Can you add {x}?",
             "Can you tell me how much {x} is?", "Please add {x}.", "How much would {x} be?", "Do you know how much {x} is?", "What number is {x}?",
             "Tell me how much {x} is.", "Do you know what {x} is?", "Please tell me how much {x} is.", "Could you tell me how much {x} is?"],
     ["{X} is {y}."], SUMS, "is {y}"),
    ("term", ["What is {x}?", "Tell me what {x} is.", "Explain {x}.", "What does {x} mean?", "What do you mean by {x}?", "Can you explain {x}?",
              "Can you tell me what {x} is?", "Please explain {x}.", "What would you call {x}?", "I do not know what {x} is. Can you help?",
              "Explain to me what {x} means.", "Tell me about {x}.", "Do you know what {x} is?", "Please explain to me what {x} is.",
              "Could you explain {x} to me?"],
     ["{y}"], list(TERMS.items()), ""),
    ("my name", ["My name is {x}.", "I am {x}.", "Hello, my name is {x}.", "Hi, I am {x}.", "You can call me {x}.", "People call me {x}.",
                 "Call me {x}.", "My friends call me {x}.", "{x} is my name.", "Good morning, I am {x}.", "The name is {x}.",
                 "Please know that I am {x}.", "Hello, I am {x}.", "Please call me {x}.", "Good evening, my name is {x}."],
     ["Nice to meet you, {x}!"], [(n, n) for n in NAMES], ""),
    ("repeat", ["Say {x}.", "Repeat after me: {x}.", "Please say {x}.", "Say the word {x}.", "Repeat {x}.", "Can you say {x}?", "Please repeat {x}.",
                "Repeat after me, please: {x}.", "Now say {x}.", "Say this word: {x}.", "Can you repeat {x}?", "Please repeat the word {x}.",
                "Repeat the word {x}.", "Please repeat after me: {x}.", "I want you to say {x}."],
     ["{X}."],
     [(w, w) for w in "apple river mountain summer winter garden music paper window bridge stone cloud forest bread silver".split()], "{X}"),
    ("unknown", ["What is the weather today?", "What time is it?", "What is the news?", "Will it rain tomorrow?", "What will happen next year?",
                 "Where am I?", "How is the weather?", "What is the date today?", "Is it raining now?", "Will the sun shine today?",
                 "How late is it now?", "Tell me the time, please.", "What day is it today?", "Will it be cold tomorrow?",
                 "Can you tell me the weather?", "What is new in the world today?", "Will it snow today?", "What is the time now?",
                 "Can you tell me what time it is?"],
     ["I do not know: I have no clock, no window and no network."], None, "do not know"),
    ("love", ["Do you love me?", "Do you like me?", "I love you.", "I like you.", "Are we friends?", "Will you be my friend?",
              "Do you want to be with me?", "Can we be friends?", "I like you so much.", "I love you very much.", "Do you like to talk to me?",
              "Be my friend!", "Do you want to be my friend?", "I like you very much.", "Could you love me?"],
     ["You are kind. I am only a model, but I like to talk with you."], None, "only a model"),
    ("Shakespeare", ["Speak like Shakespeare.", "Say something like Shakespeare.", "Talk like Shakespeare.", "Give me a line like Shakespeare.",
                     "Write like Shakespeare.", "Can you speak like Shakespeare?", "Please talk like Shakespeare.", "Say a line like Shakespeare.",
                     "Can you write like Shakespeare?", "Give me something in the style of Shakespeare.", "Speak in the style of Shakespeare.",
                     "How would Shakespeare say hello?", "Please speak like Shakespeare.", "Say a line in the style of Shakespeare.",
                     "I want to hear you speak like Shakespeare."],
     ["Good morrow, my gentle lord! What news dost thou bring to me?"], None, "lord"),
    ("who am I", ["What is my name?", "Do you know my name?", "Who am I?", "Tell me my name.", "Can you tell me my name?", "Do you remember my name?",
                  "Please say my name.", "Say my name.", "Do you still know my name?", "Can you say who I am?", "My name, what was it?",
                  "Do you know who I am?", "What was my name?", "Please tell me my name.", "Could you say my name?"],
     ["Your name is {x}."], [(n, n) for n in NAMES], ""),
]
HELD = 3                                    # of every kind's wordings, the last ones, are held out
LEADS = ["", "", "", "", "", "", "Please: ", "Now tell me: ", "One more question. ", "I want to know: ", "Excuse me. ", "Well, then: "]


def filled(text, x, y):
    """text with the words of a fact: {x} and {y}; {z}: y again; {a}: "a x"; {t}: x with the article that English wants; {n}: an animal or a thing.
    In capitals ({X}) they begin a sentence."""
    article = "" if x in MASS else "a " if x in SINGLE else "an " if x == "orange" else "the "
    words = {"x": x, "y": y, "z": y, "a": a(x) if x else "", "t": article + x, "n": "an animal" if y == "Yes" else "a thing"}
    words.update({key.upper(): value[:1].upper() + value[1:] for key, value in words.items()})
    for key, value in words.items():
        text = text.replace("{" + key + "}", value)
    return text[:1].upper() + text[1:]


def one(draw, kind, wordings, fact, lead=True):
    name, _, answers, _, right = kind
    x, y = fact or ("", "")
    question = filled(draw.choice(wordings), x, y)
    if lead and fact and draw.random() < 0.5:
        question = draw.choice(LEADS) + question
    return question, filled(draw.choice(answers), x, y), filled(right or "{y}", x, y) if right or fact else ""


def messages(turns):
    return [{"role": role, "content": text} for question, answer in turns for role, text in (("user", question), ("assistant", answer))]


def conversations(draw):
    """All facts with four wordings each, kinds without facts 24 times, in conversations of one to four questions."""
    known = {kind[0]: kind for kind in KINDS}
    asked = [(kind, fact) for kind in KINDS if kind[0] != "who am I" for fact in (kind[3] or [None] * 6) for _ in range(4)]
    draw.shuffle(asked)
    talks = []
    while asked:
        turns = [one(draw, kind, kind[1][:-HELD], fact)[:2] for kind, fact in asked[:draw.choice((1, 2, 2, 3, 4))]]
        asked = asked[len(turns):]
        talks.append(turns)
    for name in NAMES * 4:                  # who am I, after the name was said and perhaps another question
        fact, other = (name, name), draw.choice(KINDS[:12])
        turns = [one(draw, known["my name"], known["my name"][1][:-HELD], fact)[:2]]
        turns += [one(draw, other, other[1][:-HELD], draw.choice(other[3]) if other[3] else None)[:2]] * draw.choice((0, 1))
        talks.append(turns + [one(draw, known["who am I"], known["who am I"][1][:-HELD], fact)[:2]])
    draw.shuffle(talks)
    return [{"messages": messages(turns)} for turns in talks]


def questions(draw):
    """Each kind with its held-out wordings, and with four facts each: the question, an answer, what it must contain."""
    for kind in KINDS:
        for wording in kind[1][-HELD:]:
            for fact in draw.sample(kind[3], 4) if kind[3] else [None]:
                question, answer, right = one(draw, kind, [wording], fact, lead=False)
                turns = [("My name is " + fact[0] + ".", f"Nice to meet you, {fact[0]}!")] if kind[0] == "who am I" else []
                yield {"messages": messages(turns + [(question, answer)]), "kind": kind[0], "right": right}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    draw = random.Random(1)
    for name, records in (("train.jsonl", conversations(draw)), ("held-out.jsonl", questions(draw))):
        (folder / name).write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))


if __name__ == "__main__":
    main()
