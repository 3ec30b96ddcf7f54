// The names that the linker sees. Those of a static library are everybody's, and a program may have a `relu` of its own.
#pragma once

#define add_plane periplus_add_plane
#define append_rows periplus_append_rows
#define bilinear periplus_bilinear
#define depth_to_space periplus_depth_to_space
#define join_channels periplus_join_channels
#define layer_norm periplus_layer_norm
#define layouts periplus_layouts
#define modulate periplus_modulate
#define norm_rotate periplus_norm_rotate
#define paged_attention periplus_paged_attention
#define paged_attention_hopper periplus_paged_attention_hopper
#define paged_attention_hopper_plan periplus_paged_attention_hopper_plan
#define paged_attention_merge periplus_paged_attention_merge
#define paged_attention_plan periplus_paged_attention_plan
#define paged_attention_workspace periplus_paged_attention_workspace
#define patches periplus_patches
#define predict_pixels periplus_predict_pixels
#define product periplus_product
#define product_hopper periplus_product_hopper
#define product_hopper_fits periplus_product_hopper_fits
#define product_hopper_plan periplus_product_hopper_plan
#define relu periplus_relu
