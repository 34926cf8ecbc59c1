#!/bin/sh
# Trains on several machines. Open MPI's or MPICH's launcher only starts the processes: the trainer does not use MPI.
#   HOSTS=node1,node2 sh scripts/mpirun.sh [settings of train_moe]
#
# Starts one process per machine, which drives all of its GPUs. Every machine needs this folder at the same path, and ssh
# without a password. Process 0 runs on the first host; the others connect to it.
# PER=4: four processes per machine, one GPU each.
#
# MOE_SECRET is the secret by which the processes know each other: made here unless it is set, and passed on in the environment, which
# other users cannot read, never on a command line, which they can.
set -e
command -v mpirun > /dev/null || command -v mpiexec > /dev/null || {
    echo "$0: neither mpirun nor mpiexec is here. Install one (Debian: apt install openmpi-bin), or start a process on each" >&2
    echo "machine with torchrun or by hand, as the last lines of this file show." >&2
    exit 127
}
HOSTS=${HOSTS:-$(hostname)}
PER=${PER:-1}
count=$(echo "$HOSTS" | tr , '\n' | wc -l)
export MASTER_ADDR="${MASTER_ADDR:-${HOSTS%%,*}}" MASTER_PORT="${MASTER_PORT:-29501}"
export MOE_SECRET="${MOE_SECRET:-$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n')}"

if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    # --host takes "host:slots"; -x passes a variable to the other machines; --bind-to none: the trainer uses all cores.
    exec mpirun -np $((count * PER)) --host "$(echo "$HOSTS" | sed "s/,/:$PER,/g"):$PER" --map-by "ppr:$PER:node" \
        --bind-to none -x MASTER_ADDR -x MASTER_PORT -x MOE_SECRET ./train_moe -y auto "$@"
else
    # MPICH (Hydra) passes the environment on by default, and places PER processes on each machine.
    exec mpiexec -n $((count * PER)) -ppn "$PER" -hosts "$HOSTS" ./train_moe -y auto "$@"
fi

# With torchrun, and by hand, MOE_SECRET must be set to the same text on every machine, for example from a file of mode 600:
#                  export MOE_SECRET=$(cat ~/.moe-secret)
# With torchrun:   torchrun --no-python --nnodes 2 --nproc-per-node 1 --rdzv-endpoint node1:29500 ./train_moe -y auto
# By hand:         on machine K of N:   ./train_moe -pn N -pr K -ps node1 -y auto
