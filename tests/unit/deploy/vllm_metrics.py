"""The names and kinds of the metrics that vLLM 0.33 exposes (vllm/v1/metrics/ in its sources)."""

from __future__ import annotations

_NAMES = {
    "gauge": """
        num_requests_running num_requests_waiting num_requests_waiting_by_reason num_requests_kv_fetch_by_stage
        engine_sleep_state kv_cache_usage_perc lora_requests_info
    """,
    "counter": """
        corrupted_requests_total watermark_requests_total prefix_cache_queries_total prefix_cache_hits_total
        external_prefix_cache_queries_total external_prefix_cache_hits_total mm_cache_queries_total
        mm_cache_hits_total num_preemptions_total prompt_tokens_total prompt_tokens_by_source_total
        prompt_tokens_cached_total prompt_tokens_cached_by_source_total generation_tokens_total
        request_success_total admission_rejections_total
    """,
    "histogram": """
        request_prompt_tokens request_generation_tokens iteration_tokens_total request_max_num_generation_tokens
        request_params_n request_params_max_tokens time_to_first_token_seconds inter_token_latency_seconds
        request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
        request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds
        request_num_preemptions request_prefill_kv_computed_tokens kv_block_lifetime_seconds
        kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds
    """,
}
VLLM_METRICS = {f"vllm:{name}": kind for kind, names in _NAMES.items() for name in names.split()}
