//! Builds again when a file joins or leaves one of the embedded folders.

fn main() {
    for folder in ["../../web/page", "../../docs/errors"] {
        println!("cargo::rerun-if-changed={folder}");
    }
}
