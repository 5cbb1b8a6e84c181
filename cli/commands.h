/* The commands: each gets its options and returns an exit code.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_COMMANDS_H
#define MNEME_CLI_COMMANDS_H

#include "options.h"

int command_run(options *o);
int command_chat(options *o);
int command_score(options *o);
int command_tokenize(options *o);
int command_inspect(options *o);
int command_advise(options *o);
int command_doctor(options *o);
int command_list(options *o);
int command_pull(options *o);
int command_pack(options *o);
int command_bench(options *o);
int command_cache(options *o);
int command_transcribe(options *o);
int command_serve(options *o);

#endif
