"""Serves prompts with vLLM in this process, recorded through the plugin's entry point; prints the texts as JSON.

python record_run.py TARGET DRAFT PROMPTS.jsonl TOKENS DRAFTED    (TREEOPT_RECORD says where to)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    from vllm import LLM, SamplingParams

    target, draft, prompts, tokens, drafted = sys.argv[1:6]
    rows = [json.loads(line)["token_ids"] for line in Path(prompts).read_text().splitlines()]
    engine = LLM(
        model=target,
        speculative_config={"method": "draft_model", "model": draft, "num_speculative_tokens": int(drafted)},
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=16,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.1,
        skip_tokenizer_init=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=int(tokens), ignore_eos=True, detokenize=False)
    found = engine.generate([{"prompt_token_ids": row} for row in rows], sampling, use_tqdm=False)
    print(json.dumps([list(one.outputs[0].token_ids) for one in found]))


if __name__ == "__main__":
    main()
