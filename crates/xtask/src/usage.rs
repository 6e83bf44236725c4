//! The usage text of `cargo xtask`: printed for an unknown command, and after the error of a wrong option.

/// Commands, options and steps, one line each.
pub(crate) const USAGE: &str = "\
usage: cargo xtask test [--only STEP[,STEP]]   run the steps in order, stop at the first that fails
       cargo xtask tidy                        check the rules of the source tree
       cargo xtask circles                     print the files of each crate that import each other
       cargo xtask crashes [--crate log|store|doc] [--count N] [--seed S]
                                               try N power losses (1,000,000), from seed S (0) on
       cargo xtask fuzz [--target NAME] [--count N] [--seed S]
                                               try N inputs (20,000,000) on what parses them
steps: tidy, fmt, npm, pip, go-mod, build, clippy, doc, interop, interop-py, interop-go, test, bench";
