/* presets.c: see presets.h. The only place of these values. */
#include "presets.h"
#include <string.h>

const char *const preset_name[SUITS] = { [PLAIN] = "plain", [RACE] = "race" };
const char *const preset_purpose[SUITS] = {
    [PLAIN] = "leaves no trace in the saved model, which opens in Transformers as Qwen3-MoE; the default there",
    [RACE] = "all that makes learning faster, tables of tokens and of pairs among it; saved as smoe (modeling_smoe.py)",
};
const Suited suited[SUITED] = {
    /*                  little on a GPU, much on a CPU, PLAIN, RACE */
    { "e",  DESCRIBED, { "m6:u1z2", "m4:z1", "m6:c512h4e128k4f256r100", "m6:c768h6e96k4f256l15v1g1t10j3o256r100" } },
    { "b",  ANY,       { "64",     "32",     "64",      "64" } },
    { "t",  ANY,       { "256",    "128",    "1024",    "1024" } },
    { "d",  ANY,       { "0",      "0",      "65536",   "65536" } },
    { "x",  ANY,       { "800",    "1000",   "-1",      "-1" } },
    { "k",  DESCRIBED, { "wsd",    "cosine", "wsd",     "wsd" } },
    { "kd", DESCRIBED, { "0.9",    "0.2",    "0.6",     "0.6" } },
    { "l",  ANY,       { "6e-3",   "4e-3",   "5e-3",    "5e-3" } },
    { "u",  DESCRIBED, { "50",     "50",     "20",      "20" } },
    { "ft", OWN,       { "0",      "0",      "0.5",     "0.5" } },
    { "q",  ANY,       { "0",      "0.1",    "0.1",     "0.1" } },
    { "wm", ANY,       { "0.9",    "0.9",    "0.9",     "0.9" } },
    { "wp", ANY,       { "1",      "1",      "2",       "2" } },
    { "wn", ANY,       { "0",      "0",      "0",       "0" } },
    { "w2", ANY,       { "0.99",   "0.95",   "0.95",    "0.95" } },
    { "c",  ANY,       { "2",      "0.1",    "0.1",     "0.1" } },
    { "ra", ANY,       { "0.01",   "0.01",   "0.01",    "0.01" } },
    { "dr", ANY,       { "0.3",    "0",      "0",       "0" } },
    { "mw", OWN,       { "1",      "1",      "0",       "0" } },
    { "mo", OWN,       { "f32",    "f32",    "bf16",    "bf16" } },
    { "pe", OWN,       { "bf16",   "bf16",   "fp8-head", "fp8-head" } },
    { "v",  ANY,       { "25",     "200",    "250",     "250" } },
    { "s",  ANY,       { "400",    "400",    "1000",    "1000" } },
};
const char *preset_value(int i, Suit suit, int64_t tokens) {
    static const char *const longer[][2] = { { "d", "131072" }, { "l", "6e-3" } };
    for (size_t j = 0; j < sizeof longer / sizeof *longer && suit >= PLAIN && tokens >= LONG_TEXT; j++)
        if (!strcmp(suited[i].letter, longer[j][0])) return longer[j][1];
    return suited[i].of[suit];
}

Suit preset_named(const char *word) {
    Suit i = PLAIN;
    while (i < SUITS && strcmp(word, preset_name[i])) i++;
    return i;
}
