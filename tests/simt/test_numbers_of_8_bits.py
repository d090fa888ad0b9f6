"""Numbers of 8 bits: what they are, and what an H200 gave for products of them in November 2026, bit for bit."""

import numpy as np
import pytest

from pmpp.simt.values import tensor_cores

#: By type: four rows of a and four columns of b, 128 numbers each, and the 16 sums of 128 products.
GIVEN = {
    "e4m3": (
        # a
        "b512b886c8c4bcc8ba405055b494bcc02123aa164aa251033f37a82c4233535a4404bc199fbb2d24d4aeaf342720171a24031fb631c2"
        "99222dba2cc8b4c64c99abcbcd813e25ca21bba9492a35b13f44b3b825401bacca31abb130274e2f344cd22828a30626a13830ad2926"
        "3a96492f96473031d2abb4c3a11a380a4f9ac94b384c91404233bab93e4c34b9b2355144172e9fa989a047443c94a127c0c4b7bb2ad1"
        "43aad5c22f3a16b8bf3ba9b58bbec9b9984c0a48cea1cab581cbb98a11ad18515326aa5299ba1f3428c5b12a4831b63935ad21b7c425"
        "b1b8a6c13dc6b00c2432b5382ec5b44003b53c594caf9b38a0be9fb2c49f9dc333a9bcaf3ea9b91db7cf40b9a1c5312b9bc62db61b12"
        "a023afb029994c0e3939a649341b04be285137291e1ba8b048cdc74448299811453329321b19ccce40cb42c897bab1a331a895c9173b"
        "3dc1b6bb1acb4cc4bb1fab951a20c94ccb1d25c94d52ad31b113a619410fbcc421b0abcacc82262a99c04e4a32359619563750c69325"
        "b91e292a44bab250c3b19eb99c2f423c942521bbb036ca20aaab2e39c192c5299c9d16a18e37aa99c71c14b3cba0a0464140aec518be"
        "c0baa9aa429c9027ad3243244829311949a73ed2c39b21c0c03a2e514a1c1ab018852142a5ac32399837a64aaca3a151b4a127c5a486"
        "1e34c32026b63a30c538c9b2b1ab37c21b3e320630aca05529a8",
        # b
        "c2d32932ba1c494813a20da24c499a2a40230fa948b1c42cb2323d3b25a92b279f5a2852b2af37aea5c64d9acda79bc8ce4e2da19a5b"
        "ca369ec6d04ea89a83c99ea658a4312f423ea2cda24db1c23cc513a8bf3a36aaaec04e1aa6da0b48393e29c4ca0a412625212e21539b"
        "ab2ec8b29f54b9cf1828b50cb83f28ca4f49083337b6823ecea6b01fbe83a72dc9234d1bb84306aaa00cd31da3353ba641a9b1333096"
        "a743cf193332c6484dadb402b3ba17c0cd1f2fb9c5a3c94151a020b225b72534140e4fc0d1a01c4c3552a93b51219eba3091cc4428cb"
        "94d224988fad1a1d41a88eb7b48fd3c233d1b028312aa12dbe4035c2a4c90b2e96a199cfc7472925b03d0420bea61106ac42a3973024"
        "319d22259c113e472dba0f1dd4282920b39d339a3f1d3ca006bc49b5ba9d334132bf1d33cba5422fb0d41233b43823cdb02b47a10d08"
        "ceb24520cb9e2446a341af402d8c34ae4f4caecec3b998b0c244b5152f9ea13d4aa39e303346c0209fcfc0c8513fa3ad21a7a337b12c"
        "43b53513d3a3caad3da1229fad9b062f9bc2cfd83a91b73f2403abb3b354b2cd2d4b149fa4b9bd4938a82429902220b7373b22a5aabc"
        "3e37d4364bb743d2c69d44ceb241ada449bbba3f4b22bf432db28510a6298d3b48a40e2b1db73bc4194a4d8b344dd9cf98b02d372c23"
        "af1cafb91cafb89983331d3bab2c2b3538ae19c62a2f0e48b5a3",
        [-130.6875, 22.33203125, -16.8671875, -68.1171875, 38.28125, 132.1875, -17.5703125, -36.58984375,
         33.47265625, -44.125, -114.015625, 115.34375, -49.921875, 206.265625, 15.484375, -5.48046875],
    ),
    "e5m2": (
        # a
        "abb24ab02f3fb0c94dab493b2cc54bc134c7353a43a1c54034a1c03ec2c6bc3a313e41bfb5be45b53d331c29c8a5abc6b34a3335b6bd"
        "35bd363528443cc4c51e12462ea931c3b3213b3630c1413943353c31afaf37a94636c73c3946c0b7b5c8bd4134bb312f413731bd3447"
        "3834bdc9353027b831b432b41d2dafb2c126333d32bbc2b1434432452c292b30c5af97bab2b4b3c32c2db6ac2ec1b5bc2c38ba33b940"
        "a945bb4332b64646b643b5a7b1adb8b53f38402035ac2a41bab022b545c6c8aebd4bbf423a38bcab26b4494040353731352fbe40bd39"
        "3ccc40c2afaa412b46a9afb2a23eb535c5c8333042be41492d2e20c4c0b43fb0352cb4393630403525393f3c312fb9b8b12433a349bc"
        "b03ec9b930b8c430b7b544c831c8c5b82e3bbb2ec2bcbc36312a3f303938c335b63336ab2b2c3437343f444aba9dc1b74938c3abb23c"
        "bbae4139b341a4c6c64138ad2d2f37b6c5b0be303c25374049c7ae3f442cc04d41abbabf38b4c139b143422e3db13c3aba4939b4afb7"
        "4744c13f2f482e2fc4bc3fc241b5af3bc521c52d31bfafb2c0af35c7c6bf2fac2935aa36b5ba2eb729c0b12e29c0c639afad3bafbdad"
        "38b9c399be312fb739b52f1eb2a9b4b44233bab9b035cc3f463cb634a4c23cabb345b1ad2f45bebfbbb742b22e972eb7bec74028354b"
        "453132c136b23d3dbc34b341bec441b93aafb5b5a12c2cb3bfc2",
        # b
        "323d3aa440c436abc1b62dc6b4c1beab392dbead3249aca5b3b8ab3c2ec9b92b313ab54cbfb5c33146bb2e29b641be9f35c1b4b94841"
        "4734c244402240b6bbbaaf49aac035a72db53129ad3fc52eb532aec4c442abc1c3b0c5bdb147c135b433bb3136c3bab618c7b82fafc9"
        "c83cb142432cb248c74cb14137443c32463bbd38c1bf322ba642b5c3b7a7b53a3fb630bcbcb7c126c834c5c7413b4d403247c7a944b5"
        "bd36b7202dc035c8b630c140cd343eb646c2c0c52c2d4040c9c64246afccaebc36afbc44b53da642c0b02cc42db93c4b36b72f22b0ba"
        "453b34bb43b1b734393a35c0be3044b444b0ae95312d353ca63c22be36393db5c149beba43c6be2d3140453c31adb7b4b93831334029"
        "c9be3d30cb27be4549b4b83c48ca433e3530bcc4b94239c04dc5af34b7c6444dbfafc32fc742353eb7ab4ab935bf40492cb8b7b2b941"
        "44c94240b42b324c39bc32c4bcbebcc848b3a92db4c946b6b431bd3e49353ebdb0bacdc0b925c0c9c5b9463c372e442f3037c5c130ba"
        "c9b7b4afc0c9afc04b34c6b9c4352a39ba34453b372c36292b3fca2941a7c4412eb6b9bf45b741ba3a36bf472d4140ca3041c334c5b6"
        "333bc02eb247363632b03f42adb2bbc2b1a7333b3db2403b2fbab83db3b8b5c0af3eadb14047b637b337c4bb3aa9b734362f3f42b62d"
        "c5cb36bdc2af36343b42b0bf393c364733ae38bb2430ad3534b1",
        [-84.46875, -145.09375, -366.25, 79.6875, 10.58203125, 57.7578125, 178.46875, -85.65625,
         128.53125, 52.6484375, -119.5, 255.703125, -229.265625, 158.28125, -203.046875, -162.609375],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", GIVEN)
def test_sums_have_the_bits_of_an_h200(kind):
    a, b = (np.frombuffer(bytes.fromhex(text), np.uint8).reshape(4, 128) for text in GIVEN[kind][:2])
    sums, rows = np.zeros((16, 4), np.float32), np.zeros((16, 128), np.uint8)
    rows[:4] = a
    for k in range(0, 128, 32):
        sums = tensor_cores.multiply_tiles(f"wgmma_{kind}", rows[:, k : k + 32], b[:, k : k + 32].T, sums)
    np.testing.assert_array_equal(sums[:4].reshape(-1), np.array(GIVEN[kind][2], np.float32))
    exact = tensor_cores.values_of_8_bits(kind)[a] @ tensor_cores.values_of_8_bits(kind)[b].T
    assert (sums[:4] != exact).any()


@pytest.mark.parametrize("kind", GIVEN)
def test_each_of_the_256_numbers(kind):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[kind]
    expected = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
    np.testing.assert_array_equal(tensor_cores.values_of_8_bits(kind), expected)
