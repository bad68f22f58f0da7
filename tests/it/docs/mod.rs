//! README and the book in `docs`: commands run and print what the text says, links lead somewhere,
//! and names of files and log lines exist.

mod algorithm_page;
mod blocks;
mod links;
mod markdown;
mod page;
mod recipes;
mod references;
mod session;
