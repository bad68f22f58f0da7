# shellcheck shell=bash
# For scripts that compare rates with something off and on.

# Calls `rate off` and `rate on` in each round, in the other order each time, so that both see the same
# state of the machine. Prints the rates, and adds them to FOLDER/off.rates and FOLDER/on.rates.
interleave() { # ROUNDS FOLDER
  local round name order
  for round in $(seq "$1"); do
    order=(off on)
    if ((round % 2)); then order=(on off); fi
    for name in "${order[@]}"; do
      rate "$name" | tee -a "$2/$name.rates" | sed "s/^/$round $name /"
    done
  done
}
