//! The macro that makes tests of the cases.

/// Makes a test of each case for each algorithm and store, named `case::algorithm::store`.
///
/// A store is given as a name for its tests, and the path of a function from
/// [`RuleSet`](crate::rules::RuleSet) to a [`Subject`](crate::conformance::Subject) or a type that
/// borrows as one. The calling crate needs Tokio with its macros.
///
/// ```
/// # use rlaas_limiter::{conformance::Subject, rules::RuleSet};
/// # fn my_store(rules: RuleSet) -> Subject { unimplemented!("{rules:?}") }
/// rlaas_limiter::conformance_tests! { my_store: crate::my_store }
/// # fn main() {}
/// ```
///
/// With the name of a module and a semicolon first, it makes the tests of this module alone, in
/// place.
#[macro_export]
macro_rules! conformance_tests {
    ($($store:ident: $make:path),+ $(,)?) => {
        $crate::conformance_cases! {
            all_modules, [$crate::conformance_module], [$($store: $make),+]
        }
    };
    ($module:ident; $($store:ident: $make:path),+ $(,)?) => {
        $crate::conformance_cases! {
            $module, [$crate::conformance_algorithms], [$($store: $make),+]
        }
    };
}

/// Calls a macro with the names of the algorithms in brackets, between other tokens: `all` that count
/// units over time, or those with a burst.
#[doc(hidden)]
#[macro_export]
macro_rules! with_algorithms {
    (all [$($call:tt)+] [$($before:tt)*] [$($after:tt)*]) => {
        $($call)+! { $($before)* [
            fixed_window sliding_window_log sliding_window_counter token_bucket leaky_bucket gcra
        ] $($after)* }
    };
    (buckets [$($call:tt)+] [$($before:tt)*] [$($after:tt)*]) => {
        $($call)+! { $($before)* [token_bucket leaky_bucket gcra] $($after)* }
    };
}

/// Makes the tests of the cases of a module, in a module.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_module {
    ($stores:tt $module:ident; $($cases:tt)+) => {
        mod $module {
            $crate::conformance_algorithms! { $stores $module; $($cases)+ }
        }
    };
}

/// Makes the tests of the cases of a module.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_algorithms {
    ($stores:tt $module:ident; $($algorithms:ident $cases:tt)+) => {
        $($crate::conformance_algorithms! { @named $stores $module $algorithms $cases })+
    };
    (@named $stores:tt $module:ident all $cases:tt) => {
        $crate::with_algorithms! {
            all [$crate::conformance_algorithms] [@each $stores $module] [$cases]
        }
    };
    (@named $stores:tt $module:ident buckets $cases:tt) => {
        $crate::with_algorithms! {
            buckets [$crate::conformance_algorithms] [@each $stores $module] [$cases]
        }
    };
    (@named $stores:tt $module:ident $algorithm:ident $cases:tt) => {
        $crate::conformance_algorithms! { @each $stores $module [$algorithm] $cases }
    };
    (@each $stores:tt $module:ident $algorithms:tt { $($case:ident($rules:expr))+ }) => {
        $(mod $case {
            $crate::conformance_algorithms! { @case $stores $module $case $algorithms }
        })+
    };
    (@case $stores:tt $module:ident $case:ident [$($algorithm:ident)+]) => {
        $(mod $algorithm {
            $crate::conformance_algorithms! { @test $stores $module $case $algorithm }
        })+
    };
    (@test [$($store:ident: $make:path),+] $module:ident $case:ident $algorithm:ident) => {
        $(#[tokio::test]
        async fn $store() {
            let case = $crate::conformance::case(stringify!($module), stringify!($case));
            case.run(&$make(case.rules(stringify!($algorithm)))).await;
        })+
    };
}
