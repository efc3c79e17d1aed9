#!/bin/bash
# sbatch clusters/slurm.sh sweeps/mine.yaml       from the project's folder, after make setup, the same path on all nodes
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
# Once before: ray get-auth-token --generate. Only who has that token, in a home that the nodes share, reaches the cluster.
# Two minutes before its time is over the sweep stops in order; the same job again goes on with what is missing.
set -euo pipefail
PATH=$PWD/.venv/bin:$PATH
export RAY_AUTH_MODE=token
address=$(hostname --ip-address | cut -d' ' -f1):${RAY_PORT:-6379}
processes=()
trap 'kill "${processes[@]}"; wait' EXIT
ray start --head --block --node-ip-address="${address%:*}" --port="${address#*:}" --include-dashboard=false &> ray_head.log &
processes+=($!)
until ray health-check --address "$address" &> /dev/null; do kill -0 "${processes[0]}"; sleep 1; done
if ((SLURM_NNODES > 1)); then
  srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$(hostname)" \
    ray start --block --address="$address" &> ray_workers.log &
  processes+=($!)
fi
RAY_ADDRESS=$address python -m harness sweep "$@" &
sweep=$!
trap 'kill -TERM $sweep; wait $sweep; exit' TERM
wait $sweep
