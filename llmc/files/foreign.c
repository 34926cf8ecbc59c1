/* foreign.c: see foreign.h. */
#define _POSIX_C_SOURCE 200809L
#include "foreign.h"
#include "llmc/base/text.h"
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#define PYTHON(imports, line) "python3 -c 'import sys, " imports "; " line "' %s NEW, and copy the tokenizer's files"
#define LOAD "transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=\"auto\")"
/* In a folder, the first that is there. %s of a remedy: the folder. */
static const struct { const char *pattern, *what, *remedy; } kinds[] = {
    { "pytorch_model*.bin*", "its weights are pytorch_model.bin, which only Python reads",
      "To convert them: " PYTHON("transformers", LOAD ".save_pretrained(sys.argv[2])") },
    { "adapter_[cm]o*", "a LoRA adapter, which changes a model and is none",
      "To merge it into its model: " PYTHON("peft", "peft.AutoPeftModelForCausalLM.from_pretrained(sys.argv[1], "
                                            "dtype=\"auto\").merge_and_unload().save_pretrained(sys.argv[2])") },
    { "*.gguf", "a model in GGUF, for llama.cpp", "Take the model that it was made of, which has model.safetensors" },
    { "model*-of-*.safetensors", "its model.safetensors.index.json is missing, which says where each tensor is",
      "Fetch it from where the other files are, or: " PYTHON("transformers", LOAD ".save_pretrained(sys.argv[2])") },
    { "consolidated*", "weights as their makers keep them, with other names of tensors",
      "Take the files for Transformers: config.json and model*.safetensors" },
    { "tf_model.h5", "weights for TensorFlow", "Take the files for PyTorch: config.json and model*.safetensors" },
    { "*.pt*", "weights of Python, which only Python reads", "Save the model with its save_pretrained" },
};

static int refuse(const char *given, const char *what, const char *remedy, Error *e) {
    const char *name = strstr(remedy, "%s");
    Text command = { 0 };
    text_add_bytes(&command, remedy, name ? (size_t)(name - remedy) : strlen(remedy));
    if (name) text_add_word(&command, given);
    if (name) text_add_string(&command, name + 2);
    error_set(e, "%s: %s. %s", given, what, command.at);
    free(command.at);
    return 0;
}

/* owner/name, as on the Hugging Face Hub */
static int is_hub_name(const char *given) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const char *slash = strchr(given, '/');
    return slash && slash > given && *given != '.' && slash[1] && !slash[1 + strspn(slash + 1, letters)]
        && strspn(given, letters) == (size_t)(slash - given);
}

int foreign_model(const char *given, Error *e) {
    const char *dot = strrchr(given, '.');
    if (is_file(given) && dot && !strcmp(dot, ".gguf")) return refuse(given, kinds[2].what, kinds[2].remedy, e);
    if (is_file(given)) return error_set(e, "%s: this is a file; a model is the folder with config.json and "
                                         "model.safetensors", given);
    if (!is_folder(given) && is_hub_name(given))
        return error_set(e, "%s: there is no such folder. A model of the Hugging Face Hub must be fetched first: hf "
                         "download %s --local-dir %s", given, given, strchr(given, '/') + 1);
    for (size_t i = 0; is_folder(given) && i < sizeof kinds / sizeof *kinds; i++) {
        glob_t found;
        Text pattern = { 0 };
        for (const char *c = given; *c; c++) {
            if (strchr("*?[]\\", *c)) text_add_bytes(&pattern, "\\", 1);
            text_add_bytes(&pattern, c, 1);
        }
        text_add(&pattern, "/%s", kinds[i].pattern);
        const int none = glob(pattern.at, 0, NULL, &found);
        if (none == GLOB_NOSPACE) fail(EXIT_MEMORY, "out of host memory: %s cannot be listed", given);
        if (!none) globfree(&found);
        free(pattern.at);
        if (!none) return refuse(given, kinds[i].what, kinds[i].remedy, e);
    }
    return 1;
}
