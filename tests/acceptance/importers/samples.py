"""The smallest file of every kind that importers read."""

from __future__ import annotations

import json
import pickle

SAMPLES: dict[str, bytes] = {
    name: text if isinstance(text, bytes) else text.encode()
    for name, text in {
        "treeopt-recorder": (
            '{"treeopt_recorded":1,"engine":"vllm"}\n{"document":0,"drafted":3,"accepted":1,"ranks_to_miss":[0,4]}\n'
        ),
        "vllm-prometheus": (
            'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0\n'
            'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 200.0\n'
            'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 90.0\n'
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 60.0\n'
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 30.0\n'
        ),
        "trtllm-prometheus": (
            'trtllm_spec_decode_num_draft_tokens_total{model_name="m"} 20\n'
            'trtllm_spec_decode_num_accepted_tokens_total{model_name="m"} 12\n'
            'trtllm_spec_decode_drafted_tokens_total{model_name="m",token_position="0"} 20\n'
            'trtllm_spec_decode_accepted_tokens_total{model_name="m",token_position="0"} 12\n'
        ),
        "sglang-prometheus": (
            'sglang:spec_verify_calls_total{model_name="m"} 1000\n'
            'sglang:generation_tokens_total{model_name="m"} 2320\n'
            'sglang:num_requests_total{model_name="m"} 20\n'
            'sglang:spec_num_steps{model_name="m"} 3\n'
            'sglang:spec_num_draft_tokens{model_name="m"} 4\n'
        ),
        "vllm-log": (
            "SpecDecoding metrics: Mean acceptance length: 2.37, Accepted: 137 tokens, Drafted: 300 tokens, "
            "Per-position acceptance rate: 0.650, 0.440, 0.280, Avg Draft acceptance rate: 45.7%\n"
        ),
        "vllm-log-v0": (
            "Speculative metrics: Draft acceptance rate: 0.655, System efficiency: 0.649, Number of speculative "
            "tokens: 4, Number of accepted tokens: 1735, Number of draft tokens: 2648, Number of emitted tokens: 2149\n"
        ),
        "vllm-bench": json.dumps(
            {
                "spec_decode_acceptance_rate": 50.0,
                "spec_decode_acceptance_length": 2.0,
                "spec_decode_num_drafts": 10,
                "spec_decode_draft_tokens": 20,
                "spec_decode_accepted_tokens": 10,
                "spec_decode_per_position_acceptance_rates": [0.7, 0.3],
            }
        ),
        "vllm-bench-stdout": (
            "Acceptance rate (%): 50.00\nDrafts: 10\nDraft tokens: 20\nAccepted tokens: 10\n"
            "Per-position acceptance (%):\n  Position 0: 70.0\n  Position 1: 30.0\n"
        ),
        "vllm-request": json.dumps(
            {
                "acceptance_histogram": [39, 1, 0, 3],
                "acceptance_histogram_by_draft_length": {"3": [39, 1, 0, 3]},
                "num_spec_steps": 43,
                "num_accepted_draft_tokens": 10,
                "num_draft_tokens": 129,
                "num_spec_tokens": 3,
            }
        ),
        "vllm-offline": "num_drafts: 10\nnum_draft_tokens: 20\nnum_accepted_tokens: 10\n"
        "acceptance at token 0: 0.70\nacceptance at token 1: 0.30\n",
        "sglang-rank-probe": (
            "[DDTREE rank-probe] target-token rank in draft dist (cumulative):\ndepth reached  t1    t2    t4\n"
            "d0    1000    0.70  0.80  0.90\nd1    700     0.60  0.70  0.80\n"
        ),
        "sglang-log": "Decode batch, #running-req: 16, accept len: 3.03, accept rate: 0.29, cuda graph: True\n",
        "sglang-request": json.dumps(
            {
                "spec_verify_ct": 7,
                "spec_accept_token_num": 1,
                "spec_draft_token_num": 21,
                "spec_accept_histogram": [6, 1],
            }
        ),
        "sglang-server-info": json.dumps({"avg_spec_accept_length": 2.54, "speculative_num_steps": 3}),
        "sglang-bench": json.dumps({"batch_size": 1, "steps": 3, "topk": 1, "num_draft_tokens": 4, "acc_length": 1.8}),
        "trtllm-stats": json.dumps(
            {"specDecodingStats": {"numDraftTokens": 24, "numAcceptedTokens": 12, "numRequestsWithDraftTokens": 8}}
        ),
        "trtllm-request": json.dumps(
            {
                "total_accepted_draft_tokens": 30,
                "total_draft_tokens": 60,
                "num_spec_steps": 20,
                "acceptance_histogram": [8, 0, 6, 6],
                "num_spec_tokens": 3,
            }
        ),
        "llamacpp-log": (
            "draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length =  2.92, "
            "acceptance rate per position = (0.805, 0.632, 0.483)\nstatistics draft-mtp: #calls(b,g,a) = 1 2 2, "
            "#gen drafts = 2, #gen tokens = 4, #acc tokens = 4, #mean acc len = 3.00, #acc rate/pos = (1.000, 1.000)\n"
        ),
        "medusa-csv": "Name,medusa0_top1,medusa0_top2,medusa1_top1,medusa1_top2\n7b,0.5,0.6,0.3,0.4\n",
        "medusa-topk": "TopK=0\n> Head 0 Accuracy=0.68\n> Head 1 Accuracy=0.33\nTopK=4\n> Head 0 Accuracy=0.85\n",
        "medusa-pt": pickle.dumps([[[True, False]] * 6, [[False, True]] * 4]),
        "eagle-alpha": json.dumps({"choices": [{"alpha": [60, 30], "alpha_num": [100, 60]}]}),
        "spec-bench": json.dumps({"choices": [{"accept_lengths": [4, 3, 1], "new_tokens": [8]}]}),
        "eagle-answers": json.dumps({"choices": [{"idxs": [99], "new_tokens": [300]}]}),
        "modelopt": json.dumps(
            {
                "num_speculative_tokens": 2,
                "marginal_accept_rates": [0.6, 0.3],
                "acceptance_length_histogram": {"1": 40, "2": 30, "3": 30},
            }
        ),
        "specforge": json.dumps({"mtbench": [{"steps": 3, "topk": 1, "metrics": [{"accept_length": 1.8}]}]}),
        "llamacpp-simple": "n_draft   = 5\nn_predict = 13\nn_drafted = 20\nn_accept  = 9\naccept    = 45.000%\n",
        "golden-al": "# value = golden AL\nm:\n  thinking_on: {1: 1.78, 2: 2.38}\n",
        "table": "| task | K | accept len |\n|---|---|---|\n| code | 3 | 2.5/0.1 |\n| chat | 3 | 1.9/0.2 |\n",
        "mean": "mean accepted length 2.3, K=5\n",
    }.items()
}
