// DeepSeek V3.2: V3 whose attention reads, once the context is longer than index_topk, only the
// positions that a lightning indexer picks.
#include "models/factories.h"
#include "models/latent_decoder.h"

namespace kun {
namespace {

Result<LatentDecoderShape> read_shape(const Checkpoint& checkpoint) {
  ASSIGN_OR_RETURN(LatentDecoderShape shape, read_latent_decoder_shape(checkpoint));
  ConfigReader read(checkpoint.config());
  nn::IndexerShape indexer;
  int width = 0;
  read.read("index_n_heads", indexer.heads, 1, 65536);
  read.read("index_head_dim", width, 2, 65536);
  read.read("index_topk", indexer.top, 1, 1 << 24);
  if (shape.attention.query_rank == 0) read.fail("the indexer needs q_lora_rank");
  if (width < shape.attention.rope || width % 2 != 0) {
    read.fail("index_head_dim must be even and not below qk_rope_head_dim");
  }
  RETURN_IF_ERROR(read.status());
  indexer.head_width = width;
  shape.attention.indexer = indexer;
  return shape;
}

}  // namespace

Result<std::unique_ptr<const Model>> load_deepseek_v32(const Checkpoint& checkpoint, Ops& ops,
                                                       const ModelOptions& options) {
  ASSIGN_OR_RETURN(const LatentDecoderShape shape, read_shape(checkpoint));
  return load_latent_decoder(shape, checkpoint, ops, options);
}

Result<KvLayout> deepseek_v32_layout(const Checkpoint& checkpoint, DType cache_dtype) {
  ASSIGN_OR_RETURN(const LatentDecoderShape shape, read_shape(checkpoint));
  return latent_decoder_layout_of(shape, checkpoint, cache_dtype);
}

}  // namespace kun
