//! The numeric fields of a hit, on both sides.

/// Declares the numeric fields of a hit, which follow its algorithm. Their order is that of the
/// arguments on both sides: `scripts.rs` generates the Lua lines that read them.
macro_rules! fields {
    ($list:ident $type:ident { $($field:ident),* }) => {
        /// Names of the fields, in order.
        pub(crate) const $list: &[&str] = &[$(stringify!($field)),*];

        pub(super) struct $type {
            $(pub(super) $field: u64,)*
        }

        impl $type {
            pub(super) fn write(&self, argument: &mut Vec<u8>) {
                $(write_number(argument, self.$field);)*
            }
        }
    };
}

fields!(HIT_FIELDS HitFields {
    keys, first_index, units, window, burst, shared_burst, shared_units, cost, mode, seen, action, max_debt
});
fields!(REFUND_FIELDS RefundFields { taken_at, taken_reset_after });

/// Encoded as -1: the limit has no debt, or the grant no limit.
pub(super) const NONE: u64 = u64::MAX;

pub(super) fn write_number(argument: &mut Vec<u8>, number: u64) {
    match number {
        NONE => {
            rmp::encode::write_nfix(argument, -1).expect("writing to a vector does not fail");
        }
        number => {
            rmp::encode::write_uint(argument, number).expect("writing to a vector does not fail");
        }
    }
}
