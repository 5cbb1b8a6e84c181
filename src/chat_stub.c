#include "mneme.h"
#include "base/status.h"
mn_status mn_chat_render(const mn_tokenizer *t, const char *m, size_t n, bool a, char **x, size_t *nx) { (void)t; (void)m; (void)n; (void)a; (void)x; (void)nx; MN_FAIL(MN_E_UNSUPPORTED, "no templates yet"); }
