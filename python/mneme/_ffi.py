"""The declarations of mneme.h, for ctypes: written by tools/python_ffi.py, not by hand."""
from __future__ import annotations

from ctypes import CDLL, CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float
from ctypes import c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_uint64, c_void_p
from typing import Any

MN_OK = 0
MN_E_ARG = -1
MN_E_NOMEM = -2
MN_E_FULL = -3
MN_E_IO = -4
MN_E_FORMAT = -5
MN_E_UNSUPPORTED = -6
MN_E_NOT_FOUND = -7
MN_E_CANCELLED = -8
MN_E_REFUSED = -9
MN_MOST_THREADS = 256
MN_ADD_SPECIAL = 1
MN_NO_PARSE = 2
MN_SKIP_SPECIAL = 4


class mn_model_options(Structure):
    pass


class mn_model_info(Structure):
    pass


class mn_chat_options(Structure):
    pass


class mn_cache_options(Structure):
    pass


class mn_cache_summary(Structure):
    pass


class mn_memory_plan(Structure):
    pass


class mn_cache_info(Structure):
    pass


class mn_layer_info(Structure):
    pass


class mn_generation_field(Structure):
    pass


class mn_token_event(Structure):
    pass


class mn_sequence(Structure):
    pass


class mn_generation(Structure):
    pass


class mn_generate_options(Structure):
    pass


class mn_batch_row(Structure):
    pass


class mn_embed_options(Structure):
    pass


class mn_engine_options(Structure):
    pass


class mn_request(Structure):
    pass


class mn_engine_info(Structure):
    pass


class mn_prefix_info(Structure):
    pass


class mn_request_info(Structure):
    pass


class mn_word(Structure):
    pass


class mn_segment(Structure):
    pass


class mn_transcript(Structure):
    pass


class mn_transcription(Structure):
    pass


class mn_transcribe_progress(Structure):
    pass


class mn_transcribe_options(Structure):
    pass


mn_token_callback = CFUNCTYPE(c_bool, c_void_p, POINTER(mn_token_event))
mn_logits_processor = CFUNCTYPE(c_bool, c_void_p, c_int, POINTER(c_int32), c_size_t, POINTER(c_float), c_size_t)
mn_prefix_allowed = CFUNCTYPE(c_bool, c_void_p, c_int, POINTER(c_int32), c_size_t, POINTER(POINTER(c_int32)), POINTER(c_size_t))
mn_stopping = CFUNCTYPE(c_bool, c_void_p, c_int, POINTER(c_int32), c_size_t)
mn_engine_prefixes_visit = CFUNCTYPE(c_bool, c_void_p, POINTER(mn_prefix_info))
mn_model_options_progress = CFUNCTYPE(None, c_void_p, c_uint64, c_uint64)
mn_generate_options_on_prefill = CFUNCTYPE(None, c_void_p, c_size_t, c_size_t)
mn_generate_options_abort_callback = CFUNCTYPE(c_bool, c_void_p)
mn_transcribe_options_on_progress = CFUNCTYPE(c_bool, c_void_p, POINTER(mn_transcribe_progress))
mn_transcribe_options_on_segment = CFUNCTYPE(None, c_void_p, c_size_t, POINTER(mn_segment))
mn_transcribe_options_on_file = CFUNCTYPE(None, c_void_p, c_size_t, POINTER(mn_transcript))

mn_model_options._fields_ = [
    ("size", c_size_t),
    ("compute_type", c_char_p),
    ("cpu", c_char_p),
    ("threads", c_int),
    ("memory_limit", c_uint64),
    ("progress", mn_model_options_progress),
    ("progress_user", c_void_p),
    ("packed_dir", c_char_p),
]
mn_model_info._fields_ = [
    ("size", c_size_t),
    ("architecture", c_char_p),
    ("compute_type", c_char_p),
    ("cpu", c_char_p),
    ("vocab_size", c_int32),
    ("hidden_size", c_int32),
    ("num_hidden_layers", c_int32),
    ("num_attention_heads", c_int32),
    ("num_key_value_heads", c_int32),
    ("head_dim", c_int32),
    ("max_position_embeddings", c_int64),
    ("parameters", c_uint64),
    ("file_bytes", c_uint64),
    ("packed_bytes", c_uint64),
    ("available_bytes", c_uint64),
    ("threads", c_int),
    ("has_tokenizer", c_bool),
    ("has_chat_template", c_bool),
    ("warning", c_char_p),
    ("num_mel_bins", c_int32),
    ("max_source_positions", c_int64),
    ("has_learned_positions", c_bool),
    ("mapped_bytes", c_uint64),
]
mn_chat_options._fields_ = [
    ("size", c_size_t),
    ("add_generation_prompt", c_bool),
    ("tools", c_char_p),
    ("documents", c_char_p),
    ("template_kwargs", c_char_p),
]
mn_cache_options._fields_ = [
    ("size", c_size_t),
    ("implementation", c_char_p),
    ("config", c_char_p),
    ("dtype", c_char_p),
    ("max_cache_len", c_int64),
    ("page_tokens", c_int),
    ("prefill_chunk", c_int),
    ("on_oom", c_char_p),
    ("key_file", c_char_p),
]
mn_cache_summary._fields_ = [
    ("size", c_size_t),
    ("preallocates", c_bool),
    ("max_cache_len", c_int64),
    ("page_tokens", c_int),
    ("prefill_chunk", c_int),
    ("has_unbounded_context", c_bool),
    ("path", c_char * 512),
]
mn_memory_plan._fields_ = [
    ("size", c_size_t),
    ("prompt_bytes", c_uint64),
    ("rows_bytes", c_uint64),
    ("cache_bytes", c_uint64),
    ("resident_bytes", c_uint64),
    ("session_bytes", c_uint64),
]
mn_cache_info._fields_ = [
    ("size", c_size_t),
    ("implementation", c_char_p),
    ("dtype", c_char_p),
    ("tokens", c_int64),
    ("next_position", c_int64),
    ("bytes", c_uint64),
    ("peak_bytes", c_uint64),
    ("bytes_per_token", c_uint64),
    ("max_cache_len", c_int64),
    ("num_layers", c_int32),
    ("offloaded_bytes", c_uint64),
    ("original_implementation", c_char_p),
    ("has_unbounded_context", c_bool),
    ("limit", c_int64),
    ("seen", c_int64),
    ("unique_bytes", c_uint64),
]
mn_layer_info._fields_ = [
    ("size", c_size_t),
    ("kind", c_char_p),
    ("num_key_value_heads", c_int32),
    ("k_head_dim", c_int32),
    ("v_head_dim", c_int32),
    ("tokens", c_int64),
    ("first_held", c_int64),
    ("first_exact", c_int64),
    ("quantized_tokens", c_int64),
    ("window_length", c_int64),
    ("key_codec", c_char_p),
    ("value_codec", c_char_p),
    ("key_bits", c_int32),
    ("value_bits", c_int32),
]
mn_generation_field._fields_ = [
    ("size", c_size_t),
    ("name", c_char_p),
    ("alias", c_char_p),
    ("kind", c_char_p),
    ("allowed", c_char_p),
    ("standard", c_char_p),
    ("help", c_char_p),
    ("only_samples", c_bool),
]
mn_token_event._fields_ = [
    ("size", c_size_t),
    ("row", c_int),
    ("sequence", c_int),
    ("id", c_int32),
    ("text", c_void_p),
    ("n_text", c_size_t),
    ("logprob_ids", POINTER(c_int32)),
    ("logprobs", POINTER(c_float)),
    ("finish_reason", c_char_p),
]
mn_sequence._fields_ = [
    ("size", c_size_t),
    ("row", c_int),
    ("index", c_int),
    ("ids", POINTER(c_int32)),
    ("n_ids", c_size_t),
    ("text", c_void_p),
    ("n_text", c_size_t),
    ("finish_reason", c_char_p),
    ("logprob_ids", POINTER(c_int32)),
    ("logprobs", POINTER(c_float)),
    ("scores", POINTER(c_float)),
    ("logits", POINTER(c_float)),
    ("prompt_tokens", c_size_t),
    ("cached_tokens", c_size_t),
    ("has_score", c_bool),
    ("score", c_double),
    ("beam_indices", POINTER(c_int32)),
    ("transition_scores", POINTER(c_float)),
    ("draft_tokens", c_size_t),
    ("draft_accepted", c_size_t),
    ("match_ended", c_char_p),
    ("match_other", c_int32),
    ("stop_string", c_int),
    ("file_tokens", c_size_t),
]
mn_generation._fields_ = [
    ("size", c_size_t),
    ("n_sequences", c_size_t),
    ("sequences", POINTER(POINTER(mn_sequence))),
    ("seed", c_uint64),
    ("prompt_ms", c_double),
    ("predicted_ms", c_double),
    ("cache", POINTER(mn_cache_info)),
    ("beam_scores", POINTER(c_float)),
    ("beam_logits", POINTER(c_float)),
    ("n_steps", c_size_t),
    ("n_beams", c_size_t),
    ("n_preemptions", c_size_t),
    ("queue_ms", c_double),
]
mn_generate_options._fields_ = [
    ("size", c_size_t),
    ("top_logprobs", c_int),
    ("keep_scores", c_bool),
    ("keep_logits", c_bool),
    ("on_token", mn_token_callback),
    ("user", c_void_p),
    ("on_prefill", mn_generate_options_on_prefill),
    ("process", mn_logits_processor),
    ("prefix_allowed", mn_prefix_allowed),
    ("stop", mn_stopping),
    ("assistant", c_void_p),
    ("negative_prompt", POINTER(c_int32)),
    ("n_negative_prompt", c_size_t),
    ("keep_sessions", c_bool),
    ("session", c_void_p),
    ("abort_callback", mn_generate_options_abort_callback),
]
mn_batch_row._fields_ = [
    ("size", c_size_t),
    ("prompt", POINTER(c_int32)),
    ("n_prompt", c_size_t),
    ("config", c_void_p),
    ("prefix", c_void_p),
]
mn_embed_options._fields_ = [
    ("size", c_size_t),
    ("pooling", c_char_p),
    ("normalize", c_bool),
]
mn_engine_options._fields_ = [
    ("size", c_size_t),
    ("cache", POINTER(mn_cache_options)),
    ("memory_limit", c_uint64),
    ("max_num_seqs", c_size_t),
    ("enable_prefix_caching", c_bool),
    ("max_slowdown", c_double),
    ("cache_dir", c_char_p),
    ("cache_dir_limit", c_size_t),
    ("prefix_ttl_ms", c_double),
    ("owner_quota", c_size_t),
    ("prefix_limit", c_size_t),
]
mn_request._fields_ = [
    ("size", c_size_t),
    ("prompt", POINTER(c_int32)),
    ("n_prompt", c_size_t),
    ("config", c_void_p),
    ("options", POINTER(mn_generate_options)),
    ("cache", POINTER(mn_cache_options)),
    ("prefix", c_void_p),
    ("priority", c_int),
    ("cache_salt", c_char_p),
    ("owner", c_char_p),
]
mn_engine_info._fields_ = [
    ("size", c_size_t),
    ("num_requests_running", c_size_t),
    ("num_requests_waiting", c_size_t),
    ("n_preemptions", c_uint64),
    ("cache_bytes", c_uint64),
    ("memory_limit", c_uint64),
    ("kept_bytes", c_uint64),
    ("n_kept", c_size_t),
    ("n_files", c_size_t),
    ("file_bytes", c_uint64),
    ("n_files_read", c_uint64),
    ("n_files_written", c_uint64),
    ("n_files_failed", c_uint64),
    ("n_resident_pages", c_uint64),
    ("n_offloaded_pages", c_uint64),
    ("offloaded_bytes", c_uint64),
]
mn_prefix_info._fields_ = [
    ("size", c_size_t),
    ("index", c_size_t),
    ("parent", c_ssize_t),
    ("salt", c_char_p),
    ("ids", POINTER(c_int32)),
    ("n_ids", c_size_t),
    ("n_tokens", c_size_t),
    ("is_kept", c_bool),
    ("is_running", c_bool),
    ("has_file", c_bool),
    ("bytes", c_uint64),
    ("n_hits", c_uint64),
    ("unused_ms", c_double),
    ("id", c_uint64),
    ("parent_id", c_uint64),
    ("unique_bytes", c_uint64),
    ("is_pinned", c_bool),
    ("ttl_ms", c_double),
]
mn_request_info._fields_ = [
    ("size", c_size_t),
    ("state", c_char_p),
    ("prompt_tokens", c_size_t),
    ("cached_tokens", c_size_t),
    ("prompt_done", c_size_t),
    ("generated_tokens", c_size_t),
    ("implementation", c_char_p),
    ("n_preemptions", c_size_t),
]
mn_word._fields_ = [
    ("size", c_size_t),
    ("text", c_void_p),
    ("n_text", c_size_t),
    ("start", c_double),
    ("end", c_double),
]
mn_segment._fields_ = [
    ("size", c_size_t),
    ("start", c_double),
    ("end", c_double),
    ("text", c_void_p),
    ("n_text", c_size_t),
    ("ids", POINTER(c_int32)),
    ("n_ids", c_size_t),
    ("words", POINTER(POINTER(mn_word))),
    ("n_words", c_size_t),
    ("avg_logprob", c_double),
    ("no_speech_prob", c_double),
    ("compression_ratio", c_double),
    ("temperature", c_double),
    ("window_start", c_double),
]
mn_transcript._fields_ = [
    ("size", c_size_t),
    ("path", c_char_p),
    ("status", c_int),
    ("error", c_char_p),
    ("language", c_char_p),
    ("language_probability", c_double),
    ("duration", c_double),
    ("text", c_void_p),
    ("n_text", c_size_t),
    ("ids", POINTER(c_int32)),
    ("n_ids", c_size_t),
    ("segments", POINTER(POINTER(mn_segment))),
    ("n_segments", c_size_t),
]
mn_transcription._fields_ = [
    ("size", c_size_t),
    ("n_files", c_size_t),
    ("files", POINTER(POINTER(mn_transcript))),
]
mn_transcribe_progress._fields_ = [
    ("size", c_size_t),
    ("file", c_size_t),
    ("done", c_double),
    ("duration", c_double),
]
mn_transcribe_options._fields_ = [
    ("size", c_size_t),
    ("language", c_char_p),
    ("task", c_char_p),
    ("timestamps", c_char_p),
    ("num_beams", c_int),
    ("temperatures", POINTER(c_double)),
    ("n_temperatures", c_size_t),
    ("compression_ratio_threshold", c_double),
    ("logprob_threshold", c_double),
    ("no_speech_threshold", c_double),
    ("condition_on_prev_tokens", c_bool),
    ("max_new_tokens", c_int64),
    ("seed", c_uint64),
    ("batch_size", c_size_t),
    ("cache", POINTER(mn_cache_options)),
    ("on_progress", mn_transcribe_options_on_progress),
    ("on_segment", mn_transcribe_options_on_segment),
    ("on_file", mn_transcribe_options_on_file),
    ("user", c_void_p),
    ("prompt", c_char_p),
    ("data", POINTER(c_void_p)),
    ("data_sizes", POINTER(c_size_t)),
    ("hotwords", c_char_p),
    ("vad_filter", c_bool),
    ("vad_threshold", c_double),
    ("vad_min_silence_ms", c_int64),
    ("vad_min_speech_ms", c_int64),
    ("vad_speech_pad_ms", c_int64),
]

# The result and the parameters of each function.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "mn_last_error": (c_char_p, []),
    "mn_status_text": (c_char_p, [c_int]),
    "mn_version": (c_char_p, []),
    "mn_version_number": (c_int, []),
    "mn_free": (None, [c_void_p]),
    "mn_model_options_init": (None, [POINTER(mn_model_options), c_size_t]),
    "mn_model_find": (c_int, [POINTER(c_void_p), c_char_p]),
    "mn_model_find_speech": (c_int, [POINTER(c_void_p), c_char_p]),
    "mn_models_describe": (c_int, [POINTER(c_void_p)]),
    "mn_model_open": (c_int, [POINTER(c_void_p), c_char_p, POINTER(mn_model_options)]),
    "mn_model_save_packed": (c_int, [c_void_p, c_char_p, POINTER(c_uint64)]),
    "mn_model_close": (None, [POINTER(c_void_p)]),
    "mn_model_get_info": (c_int, [c_void_p, POINTER(mn_model_info)]),
    "mn_model_fingerprint": (c_int, [c_void_p, POINTER(c_void_p)]),
    "mn_model_describe": (c_int, [c_void_p, c_int64, POINTER(c_void_p)]),
    "mn_tokenizer_open": (c_int, [POINTER(c_void_p), c_char_p]),
    "mn_tokenizer_close": (None, [POINTER(c_void_p)]),
    "mn_model_tokenizer": (c_void_p, [c_void_p]),
    "mn_tokenize": (c_int, [c_void_p, c_char_p, c_size_t, c_int, POINTER(POINTER(c_int32)), POINTER(c_size_t)]),
    "mn_tokenize_after": (c_int, [c_void_p, POINTER(c_int32), c_size_t, c_char_p, c_size_t, c_int, POINTER(POINTER(c_int32)), POINTER(c_size_t), POINTER(c_size_t)]),
    "mn_detokenize": (c_int, [c_void_p, POINTER(c_int32), c_size_t, c_int, POINTER(c_void_p), POINTER(c_size_t)]),
    "mn_detokenizer_open": (c_int, [POINTER(c_void_p), c_void_p, c_int]),
    "mn_detokenizer_close": (None, [POINTER(c_void_p)]),
    "mn_detokenizer_push": (c_int, [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_char_p), POINTER(c_size_t)]),
    "mn_detokenizer_finish": (c_int, [c_void_p, POINTER(c_char_p), POINTER(c_size_t)]),
    "mn_token_piece": (c_char_p, [c_void_p, c_int32]),
    "mn_token_id": (c_int32, [c_void_p, c_char_p]),
    "mn_special_token_id": (c_int32, [c_void_p, c_char_p]),
    "mn_vocab_size": (c_int32, [c_void_p]),
    "mn_token_bytes": (c_int, [c_void_p, c_int32, c_bool, POINTER(c_void_p), POINTER(c_size_t)]),
    "mn_chat_render": (c_int, [c_void_p, c_char_p, c_size_t, c_bool, POINTER(c_void_p), POINTER(c_size_t)]),
    "mn_chat_options_init": (None, [POINTER(mn_chat_options), c_size_t]),
    "mn_chat_render_with": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(mn_chat_options), POINTER(c_void_p), POINTER(c_size_t)]),
    "mn_chat_template": (c_char_p, [c_void_p, c_bool]),
    "mn_has_chat_template": (c_bool, [c_void_p]),
    "mn_cache_options_init": (None, [POINTER(mn_cache_options), c_size_t]),
    "mn_cache_check": (c_int, [POINTER(mn_cache_options), POINTER(mn_cache_summary)]),
    "mn_memory_plan_make": (c_int, [POINTER(mn_memory_plan), c_void_p, POINTER(mn_cache_options), c_int64, c_int64, c_int64, c_int64]),
    "mn_cache_warnings": (c_int, [c_void_p, POINTER(mn_cache_options), POINTER(c_void_p)]),
    "mn_cache_calibrate": (c_int, [c_void_p, POINTER(c_int32), c_size_t, c_char_p]),
    "mn_model_set_calibration": (c_int, [c_void_p, c_char_p]),
    "mn_cache_describe": (c_int, [POINTER(c_void_p)]),
    "mn_session_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(mn_cache_options)]),
    "mn_session_close": (None, [POINTER(c_void_p)]),
    "mn_session_encode": (c_int, [c_void_p, POINTER(c_float), c_size_t, c_size_t]),
    "mn_session_step": (c_int, [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_float)]),
    "mn_session_sync": (c_int, [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_size_t)]),
    "mn_session_logits": (POINTER(c_float), [c_void_p]),
    "mn_session_length": (c_int64, [c_void_p]),
    "mn_session_ids": (POINTER(c_int32), [c_void_p]),
    "mn_session_truncate": (c_int, [c_void_p, c_int64]),
    "mn_session_fork": (c_int, [POINTER(c_void_p), c_void_p]),
    "mn_sessions_step": (c_int, [POINTER(c_void_p), c_size_t, POINTER(c_int32)]),
    "mn_sessions_select": (c_int, [POINTER(c_void_p), c_size_t, POINTER(c_int32), c_size_t]),
    "mn_session_set_cache": (c_int, [c_void_p, POINTER(mn_cache_options)]),
    "mn_session_save": (c_int, [c_void_p, c_char_p, c_bool]),
    "mn_session_load": (c_int, [POINTER(c_void_p), c_void_p, c_char_p, POINTER(mn_cache_options)]),
    "mn_session_open_cached": (c_int, [POINTER(c_void_p), c_void_p, POINTER(mn_cache_options), c_char_p, POINTER(c_int32), c_size_t]),
    "mn_cache_file_is": (c_bool, [c_char_p]),
    "mn_cache_file_describe": (c_int, [c_char_p, POINTER(c_void_p)]),
    "mn_cache_file_verify": (c_int, [c_char_p, c_char_p]),
    "mn_cache_file_copy": (c_int, [c_char_p, c_char_p, c_char_p, c_char_p]),
    "mn_sessions_export": (c_int, [POINTER(c_void_p), c_size_t, c_char_p, c_char_p]),
    "mn_session_import": (c_int, [POINTER(c_void_p), c_void_p, POINTER(mn_cache_options), c_char_p, c_size_t, POINTER(c_int32), c_size_t]),
    "mn_session_import_layers": (c_int, [POINTER(c_void_p), c_void_p, POINTER(mn_cache_options), POINTER(c_int32), c_size_t, POINTER(POINTER(c_float)), POINTER(POINTER(c_float)), c_size_t]),
    "mn_session_import_rows": (c_int, [c_char_p, POINTER(c_size_t)]),
    "mn_tensor_save": (c_int, [c_char_p, c_char_p, POINTER(c_int64), c_int, POINTER(c_float)]),
    "mn_session_cache": (c_int, [c_void_p, POINTER(mn_cache_info)]),
    "mn_session_layer": (c_int, [c_void_p, c_int, POINTER(mn_layer_info)]),
    "mn_session_read": (c_int, [c_void_p, c_int, c_bool, c_int64, c_int64, POINTER(c_float)]),
    "mn_session_kv_shape": (c_int, [c_void_p, c_int, c_int64 * 4]),
    "mn_session_cancel": (None, [c_void_p]),
    "mn_generation_config_open": (c_int, [POINTER(c_void_p), c_void_p]),
    "mn_generation_config_close": (None, [POINTER(c_void_p)]),
    "mn_generation_config_set": (c_int, [c_void_p, c_char_p, c_char_p]),
    "mn_generation_config_load": (c_int, [c_void_p, c_char_p, c_size_t]),
    "mn_generation_field_at": (POINTER(mn_generation_field), [c_int]),
    "mn_generation_config_get": (c_void_p, [c_void_p, c_char_p]),
    "mn_generation_config_cache": (c_int, [c_void_p, POINTER(mn_cache_options)]),
    "mn_generate_options_init": (None, [POINTER(mn_generate_options), c_size_t]),
    "mn_generation_config_check": (c_int, [c_void_p, POINTER(mn_generate_options), POINTER(c_void_p)]),
    "mn_generate": (c_int, [c_void_p, POINTER(c_int32), c_size_t, c_void_p, POINTER(mn_generate_options), POINTER(POINTER(mn_generation))]),
    "mn_generate_batch": (c_int, [c_void_p, POINTER(mn_cache_options), POINTER(mn_batch_row), c_size_t, c_void_p, POINTER(mn_generate_options), POINTER(POINTER(mn_generation))]),
    "mn_generator_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(c_int32), c_size_t, c_void_p, POINTER(mn_generate_options)]),
    "mn_generator_open_batch": (c_int, [POINTER(c_void_p), c_void_p, POINTER(mn_cache_options), POINTER(mn_batch_row), c_size_t, c_void_p, POINTER(mn_generate_options)]),
    "mn_generator_step": (c_int, [c_void_p, POINTER(c_bool)]),
    "mn_generator_finish": (c_int, [c_void_p, POINTER(POINTER(mn_generation))]),
    "mn_generator_close": (None, [POINTER(c_void_p)]),
    "mn_generation_take_session": (c_int, [POINTER(mn_generation), c_size_t, POINTER(c_void_p)]),
    "mn_generation_close": (None, [POINTER(POINTER(mn_generation))]),
    "mn_sampler_open": (c_int, [POINTER(c_void_p), c_void_p, c_void_p, POINTER(c_int32), c_size_t]),
    "mn_sampler_close": (None, [POINTER(c_void_p)]),
    "mn_sampler_choose": (c_int, [c_void_p, POINTER(c_float), POINTER(c_float), POINTER(c_int32)]),
    "mn_sampler_accept": (c_int, [c_void_p, c_int32]),
    "mn_sampler_seed": (c_uint64, [c_void_p]),
    "mn_embed_options_init": (None, [POINTER(mn_embed_options), c_size_t]),
    "mn_model_embed": (c_int, [c_void_p, POINTER(c_int32), c_size_t, POINTER(mn_embed_options), POINTER(c_float)]),
    "mn_machine_describe": (c_int, [c_char_p, POINTER(c_void_p)]),
    "mn_engine_options_init": (None, [POINTER(mn_engine_options), c_size_t]),
    "mn_engine_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(mn_engine_options)]),
    "mn_engine_close": (None, [POINTER(c_void_p)]),
    "mn_request_init": (None, [POINTER(mn_request), c_size_t]),
    "mn_engine_add": (c_int, [c_void_p, POINTER(mn_request), POINTER(c_int)]),
    "mn_engine_step": (c_int, [c_void_p, POINTER(c_size_t)]),
    "mn_engine_wait": (c_int, [c_void_p, c_double, POINTER(c_bool)]),
    "mn_engine_wake": (None, [c_void_p]),
    "mn_engine_get_info": (c_int, [c_void_p, POINTER(mn_engine_info)]),
    "mn_engine_prefixes": (c_int, [c_void_p, mn_engine_prefixes_visit, c_void_p]),
    "mn_engine_prefix_of": (c_int, [c_void_p, POINTER(c_int32), c_size_t, c_char_p, POINTER(c_uint64)]),
    "mn_engine_prefix_session": (c_int, [c_void_p, c_uint64, POINTER(c_void_p)]),
    "mn_engine_prefix_add": (c_int, [c_void_p, c_void_p, c_char_p, c_char_p, POINTER(c_uint64)]),
    "mn_engine_prefix_room": (None, [c_void_p, c_size_t]),
    "mn_engine_prefix_hold": (c_int, [c_void_p, c_uint64, c_bool, c_double]),
    "mn_engine_prefix_drop": (c_int, [c_void_p, c_uint64]),
    "mn_engine_request": (c_int, [c_void_p, c_int, POINTER(mn_request_info)]),
    "mn_engine_cancel": (c_int, [c_void_p, c_int]),
    "mn_engine_take": (c_int, [c_void_p, POINTER(c_int), POINTER(POINTER(mn_generation))]),
    "mn_features_open": (c_int, [POINTER(c_void_p), c_char_p, c_size_t, c_size_t]),
    "mn_features_close": (None, [POINTER(c_void_p)]),
    "mn_features_count": (c_int64, [c_void_p]),
    "mn_features_window": (c_int, [c_void_p, c_int64, c_size_t, POINTER(c_float)]),
    "mn_transcribe_options_init": (None, [POINTER(mn_transcribe_options), c_size_t]),
    "mn_transcribe": (c_int, [c_void_p, POINTER(c_char_p), c_size_t, POINTER(mn_transcribe_options), POINTER(POINTER(mn_transcription))]),
    "mn_transcription_close": (None, [POINTER(POINTER(mn_transcription))]),
    "mn_subtitles_head": (c_int, [c_char_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "mn_subtitles_cue": (c_int, [c_char_p, c_int64, c_double, c_double, c_char_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t)]),
}


def declare(library: CDLL) -> None:
    for name, (result, parameters) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = parameters
