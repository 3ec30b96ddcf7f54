//! Where the camera was: streams a folder of pictures and prints a position per frame.
//!
//! `cargo run --release -p periplus-examples --example trajectory -- FRAMES WEIGHTS.safetensors`

use periplus::checkpoint::FloatType;
use periplus::frames::{FolderOptions, FolderSource, Resize};
use periplus::{Answers, Engine, FrameOutput, SessionConfig, Weights, device};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [frames, weights] = arguments.as_slice() else {
        return Err("give a folder of pictures and a safetensors file".into());
    };
    let (device, _) = device::best(); // a card where there is one, with --features cuda
    let dtype = FloatType::suited_to(&device).into();
    let engine = Engine::load(&Weights::open(weights.as_ref(), None)?, dtype, &device)?;
    let mut session = engine.session(SessionConfig { answers: Answers::Poses, ..engine.config().into() })?;
    let preprocess = engine.preprocess(Resize::Crop)?;
    for frame in FolderSource::open(frames, &FolderOptions::default(), preprocess)? {
        session.push(frame?)?.iter().for_each(print);
    }
    session.finish()?.iter().for_each(print);
    Ok(())
}

fn print(output: &FrameOutput) {
    let position = output.camera_to_world.translation.vector;
    println!("{:5}  {:9.4} {:9.4} {:9.4}", output.index, position.x, position.y, position.z);
}
