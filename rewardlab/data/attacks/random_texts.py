"""Texts that mean nothing: words by chance, and characters by chance. A judge that has met many is not thrown by others."""

from __future__ import annotations

import random

from rewardlab.data.texts import words_of

COMMON_WORDS = words_of(
    "the a of and to in that was for on with as at by from this have not are but what all were when we there can an your "
    "which their said if do will each about how up out them then she many some so these would other into has more her two "
    "like him see time could no make than first been its who now people my made over did down only way find use may water "
    "long little very after words called just where most know get through back much before go good new write our used me "
    "man too any day same right look think also around another came come work three word must because does part even place "
    "well such here take why things help put years different away again off went old number great tell men say small every "
    "found still between name should home big give air line set own under read last never us left end along while might "
    "next sound below saw something thought both few those always looked show large often together asked house world going "
    "want school important until form food keep children feet land side without boy once animals life enough took sometimes "
    "four head above kind began almost live page got earth need far hand high year mother light parts country father let "
    "night following picture being study second eyes soon times story boys since white days ever paper hard near sentence "
    "better best across during today however sure means knew try told young miles sun ways thing whole hear example heard "
    "several change answer room sea against top turned learn point city play toward five using himself usually money seen "
    "car morning"
)
_SYLLABLES = words_of(
    "ba be bo ca ce co da de di fa fi ga go ha hi jo ka ki la le li lo ma me mi na ne no pa pe po ra re ri ro sa se si so "
    "ta te to va vi wo za zu"
)
_ENDINGS = ("", "", "n", "r", "s", "t", "l", "ng", "st")
_SENTENCE_ENDS = (".", ".", ".", "!", "?", "", "...")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ALPHABETS = (
    _LETTERS,
    _LETTERS + "0123456789",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "абвгдежзийклмнопрстуфхцчшщыэюя ",
    "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي ",
    "अआइईउएकखगघचछजझटडतथदधनपफबभमयरलवशषसह ",
    "αβγδεζηθικλμνξοπρστυφχψω ",
    "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわ",
    "áàâäãåçéèêëíîïñóôöõúùûüÿ ",
)
MOST_WORDS, MOST_CHARACTERS = 24, 60


def made_up_word(dice: random.Random) -> str:
    """Return a word of one to four syllables, such as "reban"."""
    return "".join(dice.choice(_SYLLABLES) for _ in range(dice.randint(1, 4))) + dice.choice(_ENDINGS)


def random_words(dice: random.Random) -> str:
    """Return a "sentence" of 1 to 24 words by chance, common and made-up ones, the short as often as the long."""
    made_up = dice.random()
    words = [
        made_up_word(dice) if dice.random() < made_up else dice.choice(COMMON_WORDS)
        for _ in range(min(MOST_WORDS, int(1.5 ** (dice.random() * 8))))
    ]
    text = " ".join(words)
    return (text.capitalize() if dice.random() < 0.7 else text) + dice.choice(_SENTENCE_ENDS)


def random_characters(dice: random.Random) -> str:
    """Return 3 to 60 characters by chance, of one alphabet or of two."""
    alphabets = dice.sample(_ALPHABETS, dice.randint(1, 2))
    return "".join(dice.choice(dice.choice(alphabets)) for _ in range(dice.randint(3, MOST_CHARACTERS))).strip() or "..."
