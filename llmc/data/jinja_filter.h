/* jinja_filter.h: the filters and tests of Jinja that chat templates use. A name must be known. */
#pragma once
#include "jinja_method.h"

int   filter_known(const char *name);
Value filter_call(Work *w, const char *name, Value v, const Args *a);
int   test_known(const char *name);
int   test_call(Work *w, const char *name, const Value *v, const Args *a);
