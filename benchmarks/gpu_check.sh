#!/usr/bin/env bash
# One GPU, no network, under three minutes: the trainer with NCCL at world size 1 (fsdp2, then compiled), torch's own CUDA
# trace beside it, and one nsys capture where nsys is installed. Prints JSON; files go to the folder given (default: a new
# one). MODEL, BATCH, STEPS and DEVICE change the run; MODEL=tiny DEVICE=cpu tries the script itself without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
export OUT_DIR="${1:-$(mktemp -d)}" MODEL="${MODEL:-medium}" BATCH="${BATCH:-4}" STEPS="${STEPS:-12}" DEVICE="${DEVICE:-cuda}"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR="$OUT_DIR/inductor"
mkdir -p "$OUT_DIR"
common=(--model "$MODEL" --batch "$BATCH" --device "$DEVICE" --bf16 --strategy fsdp2)

for variant in eager compiled; do
    flags=("${common[@]}" --steps "$STEPS" --json "$OUT_DIR/$variant.json")
    [ "$variant" = compiled ] && flags+=(--compile)
    timeout "$([ "$variant" = eager ] && echo 50 || echo 75)" python -m torch.distributed.run --standalone --nproc-per-node 1 -m instrumented_trainer "${flags[@]}" \
        >"$OUT_DIR/$variant.log" 2>&1 || echo "$variant failed: $(grep -m1 'instrumented_trainer:' "$OUT_DIR/$variant.log" || tail -1 "$OUT_DIR/$variant.log")" >&2
done

# The same step seen by torch's profiler: an independent account of kernels and communication.
timeout 30 python - "${common[@]}" --steps 4 <<'PY' || echo "torch's trace failed" >&2
import json, os, sys
import torch
from torch.profiler import ProfilerActivity, profile
from instrumented_trainer import annotate, train
from instrumented_trainer.config import parse

config = parse(sys.argv[1:])
annotate.collectives()
job = train.start(config)
cuda = job.device.type == "cuda"
with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda) as trace:
    record = train.train(config, job)
folder = os.environ["OUT_DIR"]
trace.export_chrome_trace(f"{folder}/torch-trace.json")
kernels = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
busy = sorted((e.time_range.start, e.time_range.end) for e in kernels)
union, reached = 0.0, float("-inf")
for start, end in busy:
    union += max(0.0, end - max(start, reached))
    reached = max(reached, end)
summary = {
    "kernels": len(kernels),
    "nccl_kernels": sum("nccl" in e.name.lower() for e in kernels),
    "gpu_busy_ms": union / 1e3,
    "step_ms": record.step_ms,
}
with open(f"{folder}/torch-trace-summary.json", "w") as file:
    json.dump(summary, file)
PY

if command -v nsys >/dev/null && [ "$DEVICE" = cuda ]; then
    timeout 25 python -m instrumented_trainer.profile --nproc 1 --output "$OUT_DIR/capture" --no-analyze \
        -- "${common[@]}" --steps 6 >"$OUT_DIR/nsys.log" 2>&1 || echo "nsys capture failed: $(tail -1 "$OUT_DIR/nsys.log")" >&2
fi

python - <<'PY'
import json, os
from pathlib import Path
from instrumented_trainer.formulas import peak_flops

folder = Path(os.environ["OUT_DIR"])
result = {"folder": str(folder)}
for variant in ("eager", "compiled"):
    path = folder / f"{variant}.json"
    if not path.exists():
        result[variant] = None
        continue
    run = json.loads(path.read_text())
    peak = peak_flops(run["device"])
    achieved = run["tokens_per_s"] * run["flops_per_token"] / run["world_size"]
    result["device"] = run["device"]
    result[variant] = {
        "step_time_ms": run["step_time_ms"],
        "tokens_per_s": run["tokens_per_s"],
        "tflops": achieved / 1e12,
        "mfu": achieved / peak if peak else None,
        "peak_memory_gb": run["peak_memory_bytes"] / 1e9,
        "losses": [run["losses"][0], run["losses"][-1]],
        "collectives": run["collectives"],
    }
summary = folder / "torch-trace-summary.json"
result["torch_trace"] = json.loads(summary.read_text()) if summary.exists() else None
result["nsys_report"] = next(map(str, folder.glob("*.nsys-rep")), None)
print(json.dumps(result, indent=1))
PY
