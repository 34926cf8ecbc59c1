#!/bin/sh
# Trains on several machines with Open MPI's or MPICH's launcher, which only starts the processes: the trainer does not
# use MPI.      HOSTS=node1,node2 sh scripts/mpirun.sh [settings of train_moe]
#
# One process a machine, which drives all of its GPUs. All machines must have this folder at the same place, and be
# reachable by ssh without a password. The first host is where process 0 runs, and so where the others meet it.
# PER=4: four processes a machine, a GPU each, instead of one.
set -e
HOSTS=${HOSTS:-$(hostname)}
PER=${PER:-1}
count=$(echo "$HOSTS" | tr , '\n' | wc -l)
export MASTER_ADDR="${MASTER_ADDR:-${HOSTS%%,*}}" MASTER_PORT="${MASTER_PORT:-29501}"

if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    # "host:slots"; -x hands a variable to the other machines; no binding: the trainer uses all cores.
    exec mpirun -np $((count * PER)) --host "$(echo "$HOSTS" | sed "s/,/:$PER,/g"):$PER" --map-by "ppr:$PER:node" \
        --bind-to none -x MASTER_ADDR -x MASTER_PORT ./train_moe -y 1 "$@"
else
    # MPICH (Hydra) hands the environment on by itself, and fills machines with PER processes each.
    exec mpiexec -n $((count * PER)) -ppn "$PER" -hosts "$HOSTS" ./train_moe -y 1 "$@"
fi

# Under torchrun:   torchrun --no-python --nnodes 2 --nproc-per-node 1 --rdzv-endpoint node1:29500 ./train_moe -y 1
# By hand:          on each machine K of N:   ./train_moe -pn N -pr K -ps node1 -y 1
