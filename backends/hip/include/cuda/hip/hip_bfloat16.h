// <hip/hip_bfloat16.h> on NVIDIA.
#pragma once
#include "../../kvc_hip_cuda.h"
